'use strict';
const { types } = require('rhea');

const STATES = { active: 0, deferred: 1, scheduled: 2 };

/** A message in a queue. */
class StoredMessage {
    constructor(message, sequence, enqueued) {
        this.message = message;
        this.sequence = sequence;
        this.enqueued = enqueued;
        this.state = 'active';
        this.deliveries = 0;
        this.lock = undefined;
        this.expires = undefined;
        this.isOffered = false;
        this.originalSequence = sequence;
        // Application properties that settlements have added.
        this.added = new Map();
    }

    /** Returns the bytes that a receiver gets, with the service's annotations. */
    encode() {
        return this.annotated(this.lock);
    }

    /** Returns the bytes that a peek shows: a locked message is active, and nothing says that it is locked. */
    encodeForPeek() {
        return this.annotated(undefined);
    }

    annotated(lock) {
        const annotations = new Map([
            ['x-opt-sequence-number', types.Long(this.sequence)],
            ['x-opt-enqueue-sequence-number', types.Long(this.originalSequence)],
            ['x-opt-enqueued-time', types.Timestamp(this.enqueued)],
            ['x-opt-message-state', types.Int(STATES[this.state])],
        ]);
        if (lock) annotations.set('x-opt-locked-until', types.Timestamp(lock.until));
        return this.message.encode(this.deliveries, annotations, this.added);
    }
}

module.exports = { StoredMessage };
