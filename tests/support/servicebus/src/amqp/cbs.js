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
            // After the token: who has no right is not shown what exists. A token for the whole namespace has no path.
            broker.claims(connection).put(audience, String(token), (path) => path === '' || broker.namespace.find(path));
            return {};
        },
    };
}

module.exports = { cbs };
