'use strict';
// The namespace's time. Nobody moves that of the service, so that one has to wait; an emulator that is the namespace moves its own.

class TrueTime {
    now() {
        return Date.now();
    }

    /** The time of the service does not stop: what waits for it must not depend on the machine's speed. */
    stop() {}

    async advance(milliseconds) {
        if (milliseconds > 0) console.error(`waiting ${milliseconds} ms, because this namespace's time cannot be moved`);
        await new Promise((resolve) => setTimeout(resolve, milliseconds));
    }
}

class MovedTime {
    constructor(control) {
        this.control = control;
        this.known = Date.now();
    }

    now() {
        return this.known;
    }

    stop() {
        return this.call({ stop: true });
    }

    advance(milliseconds) {
        return this.call({ advance: milliseconds });
    }

    async call(body) {
        const answer = await fetch(`${this.control}/clock`, { method: 'POST', body: JSON.stringify(body) });
        this.known = (await answer.json()).now;
    }
}

module.exports = { MovedTime, TrueTime };
