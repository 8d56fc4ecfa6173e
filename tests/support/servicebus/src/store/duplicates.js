'use strict';

/** The message ids that a queue has seen within its window. */
class Duplicates {
    constructor(clock) {
        this.clock = clock;
        this.seen = new Map();
    }

    /** Records an id; returns false when it was seen less than `window` milliseconds ago. */
    record(id, window) {
        const now = this.clock.now();
        // Insertion order is time order.
        for (const [old, at] of this.seen) {
            if (at + window > now) break;
            this.seen.delete(old);
        }
        if (this.seen.has(id)) return false;
        this.seen.set(id, now);
        return true;
    }
}

module.exports = { Duplicates };
