'use strict';
// What receivers decide about a locked message.

const { plain } = require('../message.js');
const { badRequest } = require('../errors.js');

/** The most bytes of all properties of a message. */
const LARGEST_PROPERTIES = 65_536;

/** Throws when the outcome cannot be applied. */
function check(queue, token) {
    queue.locks.find(token);
}

/**
 * Applies an outcome to the message that the token locks; throws when the lock is lost.
 * `outcome` has the kind, and for dead letters `reason` and `description`; `properties` are added to the message.
 */
function settle(queue, token, outcome) {
    const stored = queue.locks.find(token);
    const added = [...(outcome.properties ?? [])];
    const all = [...added, ['DeadLetterReason', outcome.reason], ['DeadLetterErrorDescription', outcome.description]];
    const bytes = (value) => Buffer.byteLength(String(plain(value) ?? ''));
    const known = all.filter(([, value]) => value !== undefined);
    const size = known.reduce((sum, [name, value]) => sum + bytes(name) + bytes(value), stored.message.propertiesSize);
    if (size > LARGEST_PROPERTIES) throw badRequest(`The properties have more than ${LARGEST_PROPERTIES} bytes.`);
    for (const [name, value] of added) stored.added.set(name, value);
    APPLY[outcome.kind](queue, stored, outcome);
}

const APPLY = {
    complete: (queue, stored) => queue.remove(stored),
    abandon: (queue, stored) => queue.locks.release(stored, 1),
    // An AMQP `released`: back at once and not counted.
    release: (queue, stored) => queue.locks.release(stored, 0),
    'dead-letter': (queue, stored, { reason, description }) => queue.bury(stored, reason, description),
    defer: (queue, stored) => {
        queue.locks.forget(stored);
        stored.state = 'deferred';
        // A deferral counts as a delivery, but never buries.
        stored.deliveries += 1;
    },
};

module.exports = { LARGEST_PROPERTIES, check, settle };
