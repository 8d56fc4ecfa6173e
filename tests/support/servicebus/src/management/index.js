'use strict';
// The operations of `<entity>/$management`.

const deferred = require('./deferred.js');
const locks = require('./locks.js');
const messages = require('./messages.js');
const sessions = require('./sessions.js');

/** Returns the operations on a queue, by name. */
function management(queue) {
    const all = { ...deferred, ...locks, ...messages, ...sessions };
    const bound = Object.entries(all).map(([name, serve]) => [`com.microsoft:${name}`, (body, request) => serve(queue, body, request)]);
    return Object.fromEntries(bound);
}

module.exports = { management };
