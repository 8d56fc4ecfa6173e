'use strict';
const { number, plain } = require('../message.js');
const { messageNotFound, notAllowed } = require('../errors.js');
const { sequences, uuid } = require('./fields.js');

const RECEIVE_AND_DELETE = 0;

module.exports = {
    'receive-by-sequence-number': (queue, body) => {
        const all = sequences(body).map((sequence) => deferred(queue, sequence));
        const deletes = number(body.get('receiver-settle-mode')) === RECEIVE_AND_DELETE;
        const id = plain(body.get('session-id'));
        const session = id === undefined ? undefined : queue.sessions.held(id);
        return { messages: all.map((stored) => (deletes ? removed(queue, stored) : locked(queue, stored, session))) };
    },
};

function deferred(queue, sequence) {
    const stored = queue.messages.get(sequence);
    if (stored?.state !== 'deferred') throw messageNotFound(sequence);
    if (stored.lock) throw notAllowed(`The message ${sequence} is locked.`);
    if (stored.expires <= queue.clock.now()) {
        queue.discard(stored);
        throw messageNotFound(sequence);
    }
    return stored;
}

function removed(queue, stored) {
    queue.remove(stored);
    return { message: stored.encode() };
}

function locked(queue, stored, session) {
    const token = queue.locks.take(stored, session);
    return { message: stored.encode(), 'lock-token': uuid(token) };
}
