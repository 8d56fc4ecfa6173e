'use strict';
// The rights of a connection: tokens put to `$cbs`, each for an audience and for a time.

const { createHmac, timingSafeEqual } = require('node:crypto');
const { badRequest, unauthorized } = require('../errors.js');

/** Reads tokens: shared access signatures of the emulator's key, and tokens of Entra ID, whose signature is not checked. */
class Tokens {
    constructor({ keyName, key, checks, now = Date.now }) {
        this.keyName = keyName;
        this.key = key;
        this.checks = checks;
        this.now = now;
    }

    /**
     * Returns for how many milliseconds a token is valid; throws when it is not. Clients make tokens by the true time, so
     * that it counts here, whatever the emulator's clock says, unless all time is virtual.
     */
    validity(token) {
        if (!this.checks) return Infinity;
        const read = token.startsWith('SharedAccessSignature ') ? this.signature(token) : webToken(token);
        const left = read - this.now();
        if (!(left > 0)) throw unauthorized('ExpiredToken: The token has expired.');
        return left;
    }

    signature(token) {
        const fields = new Map(token.slice(token.indexOf(' ') + 1).split('&').map(pair));
        const [resource, expiry] = [fields.get('sr'), fields.get('se')];
        const wanted = createHmac('sha256', this.key).update(`${resource}\n${expiry}`).digest();
        const given = Buffer.from(decodeURIComponent(fields.get('sig') ?? ''), 'base64');
        const isRight = given.length === wanted.length && timingSafeEqual(given, wanted);
        if (!(isRight && fields.get('skn') === this.keyName)) {
            throw unauthorized('InvalidSignature: The token has an invalid signature.');
        }
        return Number(expiry) * 1000;
    }
}

function pair(text) {
    const at = text.indexOf('=');
    return [text.slice(0, at), text.slice(at + 1)];
}

function webToken(token) {
    try {
        const { exp } = JSON.parse(Buffer.from(token.split('.')[1], 'base64url').toString());
        return exp * 1000;
    } catch {
        throw badRequest('The token is neither a shared access signature nor a JSON web token.');
    }
}

/** The claims of one connection. */
class Claims {
    constructor(tokens, clock, expired) {
        this.tokens = tokens;
        this.clock = clock;
        this.byPath = new Map();
        this.expired = expired;
        this.alarm = clock.alarm(() => this.expire());
    }

    /** Takes a token for an audience, which is an address with or without a scheme and host, unless `check` refuses its path. */
    put(audience, token, check) {
        const [path, validity] = [pathOf(audience), this.tokens.validity(token)];
        check(path);
        this.byPath.set(path, this.clock.now() + validity);
        this.arm();
    }

    /** Tells whether a valid token covers the address. */
    cover(address) {
        if (!this.tokens.checks) return true;
        const path = address.toLowerCase();
        const now = this.clock.now();
        const covers = ([claimed, expiry]) =>
            expiry > now && (claimed === '' || path === claimed || path.startsWith(`${claimed}/`));
        return [...this.byPath].some(covers);
    }

    /** Tells whether there is any valid token. */
    get any() {
        const now = this.clock.now();
        return !this.tokens.checks || [...this.byPath.values()].some((expiry) => expiry > now);
    }

    arm() {
        const first = Math.min(...this.byPath.values());
        this.alarm.set(first < Infinity ? first : undefined);
    }

    expire() {
        const now = this.clock.now();
        for (const [path, expiry] of this.byPath) if (expiry <= now) this.byPath.delete(path);
        this.arm();
        this.expired();
    }

    stop() {
        this.alarm.clear();
    }
}

/** Returns the path of an address, without scheme, host and trailing slashes, in lower case. */
function pathOf(address) {
    const path = address.replace(/^[a-z]+:\/\/[^/]*/i, '');
    return path.replace(/^\/+|\/+$/g, '').toLowerCase();
}

module.exports = { Claims, Tokens, pathOf };
