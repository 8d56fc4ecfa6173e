'use strict';
// Lock tokens. A delivery tag holds the GUID in little-endian field order, an AMQP uuid in big-endian order.

const { randomBytes } = require('node:crypto');

/** Returns a new token in the order of delivery tags. */
function newToken() {
    return randomBytes(16);
}

/** Turns one order into the other. */
function swapped(bytes) {
    const copy = Buffer.from(bytes);
    copy.subarray(0, 4).reverse();
    copy.subarray(4, 6).reverse();
    copy.subarray(6, 8).reverse();
    return copy;
}

module.exports = { newToken, swapped };
