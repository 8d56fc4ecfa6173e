'use strict';
// The fields of management requests and answers.

const { types } = require('rhea');
const { number, plain } = require('../message.js');
const { swapped } = require('../guid.js');
const { badRequest } = require('../errors.js');

const TIMESTAMP = 0x83;
const LONG = 0x81;

function required(body, name) {
    const value = plain(body.get(name));
    if (value === undefined) throw badRequest(`The request lacks '${name}'.`);
    return value;
}

/** Returns the lock tokens of a request, in the order of delivery tags. */
const tokens = (body) => required(body, 'lock-tokens').map((uuid) => swapped(uuid));

const sequences = (body) => required(body, 'sequence-numbers').map((value) => number(value));

/** Returns a lock token as a field of an answer. */
const uuid = (token) => types.wrap_uuid(swapped(token));

const timestamps = (values) => types.wrap_array(values, TIMESTAMP);
const longs = (values) => types.wrap_array(values, LONG);

module.exports = { longs, required, sequences, timestamps, tokens, uuid };
