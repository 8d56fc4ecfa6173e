'use strict';
const { Heap } = require('./heap.js');

/** The times at which something in a queue falls due. An entry is a hint: whoever it wakes checks what is really due. */
class Deadlines {
    constructor(clock, due) {
        this.clock = clock;
        this.heap = new Heap((entry) => entry.at);
        this.due = due;
        this.alarm = clock.alarm(() => this.run());
    }

    add(at, what) {
        this.heap.push({ at, what });
        this.alarm.set(this.heap.peek().at);
    }

    run() {
        while (this.heap.peek() && this.heap.peek().at <= this.clock.now()) this.due(this.heap.pop().what);
        this.alarm.set(this.heap.peek()?.at);
    }

    stop() {
        this.heap.items.length = 0;
        this.alarm.clear();
    }
}

module.exports = { Deadlines };
