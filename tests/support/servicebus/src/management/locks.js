'use strict';
const { entries, plain } = require('../message.js');
const { badRequest, lockLost } = require('../errors.js');
const { settle, check } = require('../store/settlement.js');
const { required, timestamps, tokens } = require('./fields.js');

const KINDS = { completed: 'complete', abandoned: 'abandon', suspended: 'dead-letter', defered: 'defer' };

const operations = {
    'renew-lock': (queue, body) => ({
        expirations: timestamps(tokens(body).map((token) => queue.locks.renew(token))),
    }),

    'update-disposition': (queue, body) => {
        const outcome = {
            kind: checkDisposition(queue, body),
            reason: plain(body.get('deadletter-reason')),
            description: plain(body.get('deadletter-description')),
            properties: entries(body.get('properties-to-modify')),
        };
        for (const token of tokens(body)) settle(queue, token, outcome);
        return {};
    },
};

/** Throws when a disposition cannot be applied; returns its kind. */
function checkDisposition(queue, body) {
    const kind = KINDS[required(body, 'disposition-status')];
    if (!kind) throw badRequest('The disposition status is not known.');
    for (const token of tokens(body)) checkSession(queue, token, plain(body.get('session-id')));
    return kind;
}

/** A message of a session is settled with the session's id only. */
function checkSession(queue, token, id) {
    if (id !== undefined) queue.sessions.held(id);
    check(queue, token);
    const { session } = queue.locks.find(token).lock;
    if (session && session.id !== id) throw lockLost();
}

module.exports = { checkDisposition, operations };
