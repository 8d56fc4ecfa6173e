'use strict';
const { newToken } = require('../guid.js');
const { lockLost } = require('../errors.js');

/** The locks that receivers hold on a queue's messages. */
class Locks {
    constructor(queue) {
        this.queue = queue;
        this.byToken = new Map();
    }

    /** Delivers a message: under a lock, or for good to a receiver that deletes as it receives. */
    hand(stored, receiver) {
        if (receiver.deletes) {
            this.queue.remove(stored);
            receiver.deliver(stored, newToken());
        } else {
            receiver.deliver(stored, this.take(stored, receiver.session));
        }
    }

    /** Locks a message and returns the token. */
    take(stored, session) {
        const token = newToken();
        const until = session?.until ?? this.queue.clock.now() + this.queue.settings.LockDuration;
        stored.lock = { token, until, session };
        this.byToken.set(token.toString('hex'), stored);
        if (!session) this.watch(stored, until);
        return token;
    }

    watch(stored, until) {
        this.queue.deadlines.add(until, () => {
            if (stored.lock && !stored.lock.session && stored.lock.until <= this.queue.clock.now()) {
                this.release(stored, 1);
            }
        });
    }

    /** Returns the message that the token locks; throws when the lock is lost. */
    find(token) {
        const stored = this.byToken.get(token.toString('hex'));
        if (!stored || stored.lock.until <= this.queue.clock.now()) throw lockLost();
        return stored;
    }

    /** Renews a lock; returns its new end. */
    renew(token) {
        const stored = this.find(token);
        if (!stored.lock.session) {
            stored.lock.until = this.queue.clock.now() + this.queue.settings.LockDuration;
            this.watch(stored, stored.lock.until);
        }
        return stored.lock.until;
    }

    /** Ends a lock before its time, if it is still held, after `counted` deliveries more. */
    drop(token, counted) {
        const stored = this.byToken.get(token.toString('hex'));
        if (stored) this.release(stored, counted);
    }

    /** Ends the lock and gives the message back. */
    release(stored, counted) {
        this.forget(stored);
        this.queue.giveBack(stored, counted);
    }

    forget(stored) {
        if (stored.lock) this.byToken.delete(stored.lock.token.toString('hex'));
        stored.lock = undefined;
    }

    /** Returns the messages that a session's lock covers. */
    of(session) {
        return [...this.byToken.values()].filter((stored) => stored.lock.session === session);
    }
}

module.exports = { Locks };
