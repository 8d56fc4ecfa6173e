'use strict';
// Ways to end a link, a session or a connection.

/**
 * Ends an endpoint of rhea with an error, unless it is closed already. The client for Python reads three fields of an
 * error, so that `info` must be there.
 */
function close(endpoint, { condition, description }) {
    endpoint.close({ condition, description, info: {} });
}

const ENDS = {
    detach: (link, error) => close(link, error),
    'end-session': (link, error) => close(link.session, error),
    'close-connection': (link, error) => close(link.connection, error),
    abort: (link) => link.connection.socket.destroy(),
    freeze: (link) => freeze(link.connection.socket),
};

const CONDITIONS = {
    detach: ['amqp:link:detach-forced', 'The link was detached by the test.'],
    'end-session': ['amqp:internal-error', 'The session was ended by the test.'],
    'close-connection': ['amqp:connection:forced', 'The connection was closed by the test.'],
};

/** Strikes at a link or what carries it. `abort` cuts the socket; `freeze` lets it stand and says nothing any more. */
function strike(action, link, { condition, description } = {}) {
    const [usual, text] = CONDITIONS[action] ?? [];
    ENDS[action](link, { condition: condition ?? usual, description: description ?? text });
}

function freeze(socket) {
    socket.pause();
    socket.cork();
}

module.exports = { close, strike, STRIKES: Object.keys(ENDS) };
