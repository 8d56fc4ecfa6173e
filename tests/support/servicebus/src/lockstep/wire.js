'use strict';
const { EventEmitter } = require('node:events');

/** The emulator's end of a connection: a socket whose bytes are carried by the simulation. */
class Wire extends EventEmitter {
    constructor(number, send) {
        super();
        this.number = number;
        this.send = send;
        this.isOpen = true;
    }

    get_id_string() {
        return `wire ${this.number}`;
    }

    write(bytes) {
        // rhea uses its buffers again.
        if (this.isOpen) this.send('d', this.tag(), Buffer.from(bytes));
        return true;
    }

    /** Ends it: the client hears of it after the bytes before. */
    end() {
        if (!this.isOpen) return;
        this.isOpen = false;
        this.send('e', this.tag());
        this.emit('close');
    }

    destroy() {
        this.end();
    }

    /** Ends it without a word, because the client has gone. */
    cut() {
        if (!this.isOpen) return;
        this.isOpen = false;
        this.emit('close');
    }

    setNoDelay() {}

    tag() {
        const tag = Buffer.alloc(4);
        tag.writeUInt32BE(this.number);
        return tag;
    }
}

module.exports = { Wire };
