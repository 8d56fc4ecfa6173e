'use strict';
// Random bytes that a seed determines, for whatever asks `node:crypto`. Loaded before the emulator.

const crypto = require('node:crypto');

let state = 1n;

/** Begins the sequence of a seed. */
function seed(text) {
    state = BigInt(text);
}

/** SplitMix64. */
function next() {
    state = BigInt.asUintN(64, state + 0x9e3779b97f4a7c15n);
    let mixed = state;
    mixed = BigInt.asUintN(64, (mixed ^ (mixed >> 30n)) * 0xbf58476d1ce4e5b9n);
    mixed = BigInt.asUintN(64, (mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn);
    return mixed ^ (mixed >> 31n);
}

crypto.randomBytes = (length) => {
    const bytes = Buffer.alloc(Math.ceil(length / 8) * 8);
    for (let at = 0; at < bytes.length; at += 8) bytes.writeBigUInt64BE(next(), at);
    return bytes.subarray(0, length);
};

module.exports = { seed };
