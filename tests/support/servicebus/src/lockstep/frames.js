'use strict';
// The frames between a simulation and the emulator: a length, a kind, and bytes.

const HEAD = 5;

/** Splits a stream of bytes into frames. */
class Frames {
    constructor() {
        this.rest = Buffer.alloc(0);
    }

    /** Returns the frames that are complete with these bytes. */
    read(bytes) {
        this.rest = this.rest.length > 0 ? Buffer.concat([this.rest, bytes]) : bytes;
        const found = [];
        while (this.rest.length >= HEAD) {
            const end = HEAD + this.rest.readUInt32BE(0);
            if (this.rest.length < end) break;
            found.push({ kind: String.fromCharCode(this.rest[4]), body: this.rest.subarray(HEAD, end) });
            this.rest = this.rest.subarray(end);
        }
        return found;
    }
}

/** Returns a frame of a kind, which is one letter. */
function frame(kind, ...parts) {
    const head = Buffer.alloc(HEAD);
    head.writeUInt32BE(parts.reduce((sum, part) => sum + part.length, 0), 0);
    head.write(kind, 4, 'latin1');
    return Buffer.concat([head, ...parts]);
}

module.exports = { Frames, frame };
