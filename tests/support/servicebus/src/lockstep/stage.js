'use strict';
// Plays what a simulation tells: connections and their bytes, requests of the management API, faults, and the time.

const { setImmediate: turn } = require('node:timers/promises');
const random = require('./random.js');
const { Wire } = require('./wire.js');
const { strike } = require('../amqp/strikes.js');
const { Clock } = require('../clock.js');
const { DEFAULTS, assemble } = require('../emulator.js');

class Stage {
    /** `send` writes a frame to the simulation. */
    constructor(send) {
        this.send = send;
        this.sent = 0;
    }

    async play(kind, body) {
        await KINDS[kind](this, body);
    }

    /** Begins with an empty namespace. */
    begin({ now, seed, ...options }) {
        random.seed(seed);
        for (const wire of this.wires?.values() ?? []) wire.cut();
        const clock = new Clock();
        clock.stop(now);
        // No frame is sent only because the machine's time passes.
        const given = { ...DEFAULTS, idleTimeout: undefined, ...options, virtualTime: true };
        Object.assign(this, assemble(given, clock), { wires: new Map(), pending: [] });
    }

    open(number) {
        const wire = new Wire(number, (kind, ...parts) => {
            this.sent += 1;
            this.pending.push([kind, ...parts]);
        });
        this.wires.set(number, wire);
        this.broker.accept(wire);
    }

    /** Resolves when nothing more happens at this time. */
    async quiet() {
        let before;
        do {
            before = this.sent;
            await turn();
            this.clock.advance(0);
            await turn();
        } while (this.sent !== before);
    }

    async request({ method, target, token, body }) {
        const parts = body === null ? [] : [Buffer.from(body)];
        const headers = { host: 'localhost', authorization: token };
        const request = Object.assign(parts.values(), { method, url: target, headers });
        const answer = await new Promise((resolve) => {
            let status;
            const response = { writeHead: (code) => (status = code), end: (text) => resolve({ status, text }) };
            this.management.serve(request, response);
        });
        this.send('a', Buffer.from(`${answer.status}\n${answer.text}`));
    }

    /** Ends a link of a connection, its session, or the connection; nothing if it has none. */
    strike({ number, action, choice }) {
        const connection = this.wires.get(number)?.connection;
        const links = connection ? this.broker.linksOf(connection) : [];
        const link = links[choice % links.length];
        if (link) strike(action, link);
    }
}

const number = (body) => body.readUInt32BE(0);
const json = (body) => JSON.parse(body.toString());

const KINDS = {
    B: (stage, body) => stage.begin(json(body)),
    T: (stage, body) => stage.clock.advance(body.readDoubleBE(0) - stage.clock.now()),
    O: (stage, body) => stage.open(number(body)),
    D: (stage, body) => stage.wires.get(number(body))?.emit('data', Buffer.from(body.subarray(4))),
    C: (stage, body) => {
        stage.wires.get(number(body))?.cut();
        stage.wires.delete(number(body));
    },
    H: (stage, body) => stage.request(json(body)),
    K: (stage, body) => stage.strike(json(body)),
    /** Answers with everything that was sent, and the time of the next alarm. */
    S: async (stage) => {
        await stage.quiet();
        for (const frame of stage.pending.splice(0)) stage.send(...frame);
        stage.send('s', Buffer.from(JSON.stringify({ next: stage.clock.next() ?? null })));
    },
};

module.exports = { Stage };
