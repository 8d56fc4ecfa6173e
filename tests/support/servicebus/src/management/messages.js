'use strict';
const { Message, number, plain } = require('../message.js');
const { badRequest, messageNotFound, notAllowed } = require('../errors.js');
const { longs, required, sequences } = require('./fields.js');

/** The most messages that the tier Standard deletes by one request. */
const LARGEST_BATCH = 500;
/** The most bytes of an answer to a peek, which has one message at least. */
const LARGEST_PAGE = 262_144;

module.exports = {
    'peek-message': (queue, body) => {
        const from = number(body.get('from-sequence-number'));
        const count = number(body.get('message-count'));
        const found = queue.browse(from, count, plain(body.get('session-id')));
        if (found.length === 0) return undefined;
        return { messages: page(found.map((stored) => stored.encodeForPeek())).map((message) => ({ message })) };
    },

    'schedule-message': (queue, body) => {
        const messages = required(body, 'messages').map(read);
        for (const message of messages) {
            if (message.scheduledFor === undefined) throw badRequest('A message lacks the time at which it is to be enqueued.');
            queue.check(message);
        }
        // The number of a duplicate, which is dropped, names nothing.
        return { 'sequence-numbers': longs(messages.map((message) => queue.put(message) ?? ++queue.lastSequence)) };
    },

    'cancel-scheduled-message': (queue, body) => {
        const all = sequences(body).map((sequence) => scheduled(queue, sequence));
        for (const stored of all) queue.remove(stored);
        return {};
    },

    // Removes the oldest messages that are active and not locked.
    'batch-delete-messages': (queue, body) => {
        const before = number(body.get('enqueued-time-utc'));
        if (queue.settings.EnablePartitioning) throw notAllowed('Batch delete is not supported for partitioned entities.');
        if (number(body.get('message-count')) > LARGEST_BATCH) throw badRequest(`A batch has at most ${LARGEST_BATCH} messages.`);
        const free = (stored) => stored.state === 'active' && !stored.lock && !(stored.enqueued >= before);
        const doomed = [...queue.messages.values()].filter(free).slice(0, number(body.get('message-count')));
        for (const stored of doomed) queue.remove(stored);
        return doomed.length > 0 ? { 'message-count': doomed.length } : undefined;
    },
};

/** Returns as many messages as fit into an answer. */
function page([first, ...others]) {
    let size = first.length;
    const rest = others.findIndex(({ length }) => (size += length) > LARGEST_PAGE);
    return [first, ...(rest < 0 ? others : others.slice(0, rest))];
}

function read(entry) {
    try {
        return new Message(entry.message);
    } catch (error) {
        throw badRequest(`The message cannot be decoded: ${error.message}.`);
    }
}

function scheduled(queue, sequence) {
    const stored = queue.messages.get(sequence);
    if (stored?.state !== 'scheduled') throw messageNotFound(sequence);
    return stored;
}
