'use strict';
// The names of entities: clients use their own, and the namespace has them behind a prefix that no other gateway has.

const { randomBytes } = require('node:crypto');

const CBS = '$cbs';
const MANAGEMENT = '/$management';

class Names {
    constructor() {
        this.prefix = `jobqueue-test-${randomBytes(5).toString('hex')}-`;
    }

    /** Returns the path of an address on the namespace. */
    toNamespace(address) {
        const path = bare(address);
        return path === '' || path.startsWith('$') ? path : this.prefix + path;
    }

    /** Returns a text of the namespace with the clients' names in it. */
    toClient(text) {
        return text.replace(new RegExp(this.prefix, 'gi'), '');
    }
}

/** Returns the path of an address, without scheme, host and slashes at its ends. */
function bare(address) {
    return address.replace(/^[a-z]+:\/\/[^/]*/i, '').replace(/^\/+|\/+$/g, '');
}

/** Tells what a link to that address is for: tokens and management are requests. */
function isForRequests(address) {
    const path = bare(address).toLowerCase();
    return path === CBS || path.endsWith(MANAGEMENT);
}

/** Returns the name of the entity that an address means. */
function entityOf(address) {
    const path = bare(address);
    return path.toLowerCase().endsWith(MANAGEMENT) ? path.slice(0, -MANAGEMENT.length) : path;
}

module.exports = { Names, bare, entityOf, isForRequests };
