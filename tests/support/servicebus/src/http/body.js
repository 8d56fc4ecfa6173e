'use strict';

/** Resolves to the body of a request. */
async function readBody(request) {
    const parts = [];
    for await (const part of request) parts.push(part);
    return Buffer.concat(parts);
}

module.exports = { readBody };
