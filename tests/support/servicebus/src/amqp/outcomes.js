'use strict';
// Delivery states, as rhea writes and reads them.

const { message, types } = require('rhea');
const { entries, plain } = require('../message.js');
const { ServiceError } = require('../errors.js');

const accepted = () => message.accepted().described();
// The client for Python reads three fields of an error, so that `info` must be there.
const rejected = ({ condition, description }) =>
    message.rejected({ error: { condition, description, info: {} } }).described();

/** The service's answer to a settlement: the outcome that was asked for, a rejection without an error for a dead letter. */
const ECHO = {
    complete: accepted,
    abandon: () => message.modified({}).described(),
    defer: () => message.modified({ undeliverable_here: true }).described(),
    release: () => message.released().described(),
    'dead-letter': () => message.rejected({}).described(),
};
const echo = (kind) => ECHO[kind]();

/** Returns an outcome that is part of a transaction. */
function transactional(id, outcome) {
    return types.described(types.wrap_ulong(0x34), types.wrap_list([types.wrap_binary(id), outcome]));
}

/** Returns the answer to a declaration. */
function declared(id) {
    return types.described(types.wrap_ulong(0x33), types.wrap_list([types.wrap_binary(id)]));
}

const READ = {
    0x24: () => ({ kind: 'complete' }),
    0x25: (fields) => deadLetter(fields[0]),
    0x26: () => ({ kind: 'release' }),
    0x27: (fields) => ({ kind: plain(fields[1]) ? 'defer' : 'abandon', properties: entries(fields[2]) }),
};

/** Returns what an outcome asks for; takes an AMQP value or rhea's class for it. */
function read(state) {
    const code = state?.descriptor?.value ?? state?.constructor?.descriptor?.numeric;
    const fields = state?.value ?? [];
    const reader = READ[code];
    if (!reader) throw new ServiceError('amqp:not-implemented', 'This delivery state is not known.', 501);
    return reader(fields);
}

function deadLetter(error) {
    const properties = entries(error?.value?.[2]);
    const reason = plain(properties.get('DeadLetterReason'));
    const description = plain(properties.get('DeadLetterErrorDescription'));
    properties.delete('DeadLetterReason');
    properties.delete('DeadLetterErrorDescription');
    return { kind: 'dead-letter', reason, description, properties };
}

module.exports = { accepted, declared, echo, read, rejected, transactional };
