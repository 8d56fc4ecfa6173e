'use strict';
const { plain } = require('../message.js');
const { badRequest } = require('../errors.js');

/** The operations of `$cbs`. */
function cbs(broker) {
    return {
        'put-token': (_, request, connection) => {
            const audience = plain(request.applicationProperties.get('name'));
            const token = plain(request.section('value')?.value);
            if (typeof audience !== 'string' || token === undefined) throw badRequest('put-token lacks a name or a token.');
            broker.claims(connection).put(audience, String(token));
            return {};
        },
    };
}

module.exports = { cbs };
