'use strict';
// Numbers of deliveries. What a fault keeps back, drops or adds shifts the numbers of all that follows in a session.

/** The deliveries of a session in one direction, by the numbers of their sender (`source`) and of their receiver (`target`). */
class Ids {
    constructor() {
        this.came = 0;
        this.went = 0;
        this.next = undefined;
        this.bySource = new Map();
        this.byTarget = new Map();
    }

    /** Returns by how many transfers the receiver is behind the sender. */
    get behind() {
        return this.came - this.went;
    }

    /** Gives a delivery the next number of the receiver. */
    number(delivery) {
        this.next ??= delivery.source ?? 0;
        delivery.target = this.next;
        this.next = (this.next + 1) >>> 0;
        this.byTarget.set(delivery.target, delivery);
        if (delivery.source !== undefined) this.bySource.set(delivery.source, delivery);
    }

    forget({ source, target }) {
        this.bySource.delete(source);
        this.byTarget.delete(target);
    }
}

/** A message under way on a link, with its frames. */
class Delivery {
    constructor(link, frames) {
        this.link = link;
        this.frames = frames;
        this.source = frames[0].performative.delivery_id ?? undefined;
        this.isSettled = frames.some(({ performative }) => performative.settled);
        this.isAborted = Boolean(frames.at(-1).performative.aborted);
        this.target = undefined;
        this.answer = undefined;
        this.isDecided = false;
    }

    get bytes() {
        return Buffer.concat(this.frames.map(({ payload }) => payload ?? Buffer.alloc(0)));
    }
}

/** Returns the numbers of a range. */
function range(first, last) {
    const count = (((last ?? first) - first) >>> 0) + 1;
    return Array.from({ length: count }, (_, i) => (first + i) >>> 0);
}

/** Returns the ranges of following numbers, each as its first and last. */
function ranges(numbers) {
    const found = [];
    for (const number of numbers) {
        const last = found.at(-1);
        if (last && number === ((last[1] + 1) >>> 0)) last[1] = number;
        else found.push([number, number]);
    }
    return found;
}

module.exports = { Delivery, Ids, range, ranges };
