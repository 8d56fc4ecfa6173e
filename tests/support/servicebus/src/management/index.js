'use strict';
// The operations of `<entity>/$management`.

const deferred = require('./deferred.js');
const locks = require('./locks.js');
const messages = require('./messages.js');
const sessions = require('./sessions.js');

/** Returns the operations on a queue, by name. */
function management(queue) {
    const all = { ...deferred, ...locks.operations, ...messages, ...sessions };
    const bind = ([name, serve]) => [`com.microsoft:${name}`, (body, request, connection) => serve(queue, body, request, connection)];
    return Object.fromEntries(Object.entries(all).map(bind));
}

/** Returns what throws when an operation within a transaction cannot be made, by name. */
function transactional(queue) {
    return { 'com.microsoft:update-disposition': (body) => locks.checkDisposition(queue, body) };
}

module.exports = { management, transactional };
