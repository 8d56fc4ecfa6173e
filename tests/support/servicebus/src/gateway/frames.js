'use strict';
// Frames of AMQP: cut out of a stream of bytes, read and written.

const frames = require('rhea/lib/frames.js');

const HEADER = 8;
const PERFORMATIVES = ['open', 'begin', 'attach', 'flow', 'transfer', 'disposition', 'detach', 'end', 'close', 'sasl_init'];
const NAMES = new Map(PERFORMATIVES.map((name) => [frames[name]({}).constructor, name]));
/** The number of a flow's fields that are about the session. */
const OF_SESSION = 4;

/** Cuts a stream into protocol headers and frames. */
class Splitter {
    constructor(onHeader, onFrame) {
        this.onHeader = onHeader;
        this.onFrame = onFrame;
        this.rest = Buffer.alloc(0);
    }

    push(chunk) {
        this.rest = this.rest.length > 0 ? Buffer.concat([this.rest, chunk]) : chunk;
        while (this.rest.length >= HEADER) {
            const isHeader = this.rest.toString('latin1', 0, 4) === 'AMQP';
            const size = isHeader ? HEADER : this.rest.readUInt32BE(0);
            if (size < HEADER) throw new Error(`a frame of ${size} bytes`);
            if (this.rest.length < size) return;
            const bytes = this.rest.subarray(0, size);
            this.rest = this.rest.subarray(size);
            if (isHeader) this.onHeader(bytes);
            else this.onFrame(bytes);
        }
    }
}

/** Reads a frame: `name` tells its performative, none for an empty frame, and `raw` keeps its bytes. */
function read(bytes) {
    const frame = frames.read_frame(bytes);
    frame.raw = bytes;
    frame.name = frame.performative && NAMES.get(frame.performative.constructor);
    return frame;
}

/** Returns the bytes of a frame. */
function write(frame) {
    return frames.write_frame(frame);
}

/** Returns a frame with a performative of that name and these fields. */
function frame(channel, name, fields, payload) {
    return frames.amqp_frame(channel, frames[name](fields), payload);
}

/** Returns a performative with the same fields, some of them changed. */
function changed(performative, fields) {
    const copy = new performative.constructor([...performative.value]);
    return Object.assign(copy, fields);
}

/** Returns what a flow says about the session, without what it says about a link. */
function ofSession(flow) {
    return new flow.constructor(flow.value.slice(0, OF_SESSION));
}

module.exports = { Splitter, changed, frame, ofSession, read, write };
