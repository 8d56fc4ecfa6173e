'use strict';
const { entries, plain } = require('../message.js');
const { badRequest, lockLost } = require('../errors.js');
const { settle, check } = require('../store/settlement.js');
const { required, timestamps, tokens } = require('./fields.js');

const KINDS = { completed: 'complete', abandoned: 'abandon', suspended: 'dead-letter', defered: 'defer' };

module.exports = {
    'renew-lock': (queue, body) => ({
        expirations: timestamps(tokens(body).map((token) => queue.locks.renew(token))),
    }),

    'update-disposition': (queue, body) => {
        const kind = KINDS[required(body, 'disposition-status')];
        if (!kind) throw badRequest('The disposition status is not known.');
        const outcome = {
            kind,
            reason: plain(body.get('deadletter-reason')),
            description: plain(body.get('deadletter-description')),
            properties: entries(body.get('properties-to-modify')),
        };
        const all = tokens(body);
        for (const token of all) checkSession(queue, token, plain(body.get('session-id')));
        for (const token of all) settle(queue, token, outcome);
        return {};
    },
};

/** A message of a session is settled with the session's id only. */
function checkSession(queue, token, id) {
    if (id !== undefined) queue.sessions.held(id);
    check(queue, token);
    const { session } = queue.locks.find(token).lock;
    if (session && session.id !== id) throw lockLost();
}
