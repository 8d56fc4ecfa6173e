'use strict';
// The emulator's time. Tests advance it, so that locks expire and scheduled messages become due without waiting.

const LONGEST_TIMEOUT = 2 ** 31 - 1;

class Clock {
    constructor() {
        this.offset = 0;
        this.stopped = undefined;
        this.alarms = new Set();
    }

    /** Returns the emulator's time in milliseconds since 1970. */
    now() {
        return (this.stopped ?? Date.now()) + this.offset;
    }

    /** Stops the time, at the machine's or another: from now on it passes only when it is moved forward, however slow the machine is. */
    stop(at = Date.now()) {
        this.stopped = at;
        this.offset = 0;
        for (const alarm of [...this.alarms]) alarm.arm();
    }

    /** Moves the time forward and rings every alarm that this makes due, before it returns. */
    advance(milliseconds) {
        this.offset += milliseconds;
        for (const alarm of [...this.alarms]) alarm.elapsed();
    }

    /** Returns the time at which the next alarm rings; `undefined` if none is set. */
    next() {
        const times = [...this.alarms].map((alarm) => alarm.at);
        return times.length > 0 ? Math.min(...times) : undefined;
    }

    /** Returns an alarm that calls `ring` when its time comes. */
    alarm(ring) {
        return new Alarm(this, ring);
    }
}

class Alarm {
    constructor(clock, ring) {
        this.clock = clock;
        this.ring = ring;
        this.at = undefined;
        this.timer = undefined;
    }

    /** Sets the time; `undefined` clears the alarm. */
    set(at) {
        if (at === this.at) return;
        this.at = at;
        this.arm();
    }

    clear() {
        this.set(undefined);
    }

    arm() {
        clearTimeout(this.timer);
        if (this.at === undefined) {
            this.clock.alarms.delete(this);
            return;
        }
        this.clock.alarms.add(this);
        const wait = Math.max(0, this.at - this.clock.now());
        // Moving the time arms it again.
        if (wait > 0 && this.clock.stopped !== undefined) return;
        this.timer = setTimeout(() => this.elapsed(), Math.min(wait, LONGEST_TIMEOUT));
    }

    elapsed() {
        if (this.at === undefined) return;
        if (this.clock.now() < this.at) {
            this.arm();
            return;
        }
        this.clear();
        this.ring();
    }
}

module.exports = { Clock };
