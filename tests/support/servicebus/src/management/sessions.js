'use strict';
const { types } = require('rhea');
const { number, plain } = require('../message.js');
const { sessionLockLost } = require('../errors.js');
const { required } = require('./fields.js');

const SYMBOL_STRING = 0xb1;

module.exports = {
    // Only for the link that holds the session, if the request names one: a name means a link of the same connection.
    'renew-session-lock': (queue, body, request, connection) => {
        const session = queue.sessions.held(required(body, 'session-id'));
        const link = plain(request.applicationProperties.get('associated-link-name'));
        const { sender } = session.receiver;
        if (link !== undefined && !(link === sender.name && connection === sender.connection)) throw sessionLockLost();
        return { expiration: types.wrap_timestamp(session.renew()) };
    },

    'get-session-state': (queue, body) => ({
        'session-state': queue.sessions.held(required(body, 'session-id')).state,
    }),

    'set-session-state': (queue, body) => {
        const state = plain(body.get('session-state')) ?? null;
        queue.sessions.held(required(body, 'session-id')).setState(state);
        return {};
    },

    'get-message-sessions': (queue, body) => {
        const skip = number(body.get('skip'));
        const since = number(body.get('last-updated-time'));
        // Clients say "whatever was updated" by a time far in the future.
        const isAll = !(since < FAR);
        const ids = queue.sessions.list(isAll ? undefined : since).slice(skip, skip + number(body.get('top')));
        if (ids.length === 0) return undefined;
        return { skip: types.wrap_int(skip + ids.length), 'sessions-ids': types.wrap_array(ids, SYMBOL_STRING) };
    },
};

const FAR = Date.UTC(9999, 0);
