'use strict';
const { Heap } = require('./heap.js');

/** The waiting messages of a queue, or of one session of it, and the receivers that take them in turn. */
class Lane {
    constructor(queue) {
        this.queue = queue;
        this.ready = new Heap((stored) => stored.sequence);
        this.receivers = [];
        this.isPumping = false;
    }

    /** Makes a message available. */
    offer(stored) {
        if (!stored.isOffered) {
            stored.isOffered = true;
            this.ready.push(stored);
        }
        this.pump();
    }

    /** Hands waiting messages to receivers that have credit. */
    pump() {
        // A delivery may end a link, which calls back.
        if (this.isPumping) return;
        this.isPumping = true;
        try {
            for (let stored = this.first(); stored; stored = this.first()) {
                const receiver = this.next();
                if (!receiver) break;
                this.ready.pop().isOffered = false;
                this.queue.locks.hand(stored, receiver);
            }
        } finally {
            this.isPumping = false;
        }
    }

    /** Returns the first message that is still waiting; drops the others before it. */
    first() {
        for (let stored = this.ready.peek(); stored; stored = this.ready.peek()) {
            const isHere = this.queue.messages.get(stored.sequence) === stored;
            if (isHere && stored.state === 'active' && !stored.lock && !this.queue.expire(stored)) return stored;
            this.ready.pop().isOffered = false;
        }
        return undefined;
    }

    next() {
        const at = this.receivers.findIndex((receiver) => receiver.credit > 0);
        if (at < 0) return undefined;
        const [receiver] = this.receivers.splice(at, 1);
        this.receivers.push(receiver);
        return receiver;
    }

    add(receiver) {
        this.receivers.push(receiver);
        this.pump();
    }

    drop(receiver) {
        this.receivers = this.receivers.filter((other) => other !== receiver);
    }
}

module.exports = { Lane };
