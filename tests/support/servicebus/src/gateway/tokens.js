'use strict';
// Tokens: clients sign with the gateway's key, the namespace gets signatures of its own. So no test needs the namespace's key.

const { Tokens } = require('../amqp/claims.js');
const { inAnHour } = require('./target.js');
const { bare } = require('./names.js');

class Exchange {
    constructor({ keyName, sharedKey, checksTokens }, names, target) {
        this.checker = new Tokens({ keyName, key: sharedKey, checks: checksTokens });
        this.names = names;
        this.target = target;
    }

    /** Returns the audience and the token for the namespace. */
    exchange(audience, token) {
        const path = this.names.toNamespace(bare(audience));
        return { audience: `sb://${this.target.host}/${path}`, token: this.token(path, token) };
    }

    /** Returns a token for a path with the expiry of the client's. A wrong one becomes one that the namespace refuses. */
    token(path, given) {
        try {
            const valid = this.checker.validity(given);
            return this.target.sign(path, valid === Infinity ? inAnHour() : Math.ceil((Date.now() + valid) / 1000));
        } catch {
            return this.target.sign(path, inAnHour()).replace(/sig=[^&]*/, 'sig=d3Jvbmc%3D');
        }
    }
}

module.exports = { Exchange };
