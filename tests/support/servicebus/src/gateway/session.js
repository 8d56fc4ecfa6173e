'use strict';
const { frame, write } = require('./frames.js');
const { Ids } = require('./ids.js');

/** A session between a client and the namespace. Each side keeps its own channel. */
class Session {
    constructor(connection, { channel, performative: begin }) {
        this.connection = connection;
        this.channel = channel;
        this.begin = begin;
        this.firstIncoming = 0;
        this.remote = undefined;
        this.unbegun = [];
        // Deliveries of the client, and deliveries of the namespace.
        this.sent = new Ids();
        this.received = new Ids();
        // Links by the handle of the client, by that of the namespace, and by the one that the client sees.
        this.byClient = new Map();
        this.byNamespace = new Map();
        this.byShown = new Map();
        // Attaches that the namespace has not answered.
        this.attaching = new Map();
        this.isStruck = false;
        this.hasLeft = false;
        this.ended = new Promise((resolve) => (this.end = resolve));
    }

    get isUp() {
        return !this.isStruck && !this.hasLeft && this.connection.isUp;
    }

    get socket() {
        return this.connection.socket;
    }

    toClient(frame) {
        if (this.isUp) this.connection.toClient(write(frame));
    }

    /** Sends the client a frame of the gateway's own, as soon as the namespace has answered the beginning of the session. */
    tell(name, fields) {
        this.whenBegun(() => this.toClient(frame(this.remote, name, fields)));
    }

    whenBegun(goOn) {
        if (this.remote === undefined) this.unbegun.push(goOn);
        else goOn();
    }

    begun(channel) {
        this.remote = channel;
        for (const goOn of this.unbegun.splice(0)) goOn();
    }

    toNamespace(frame) {
        if (this.isUp) this.connection.toNamespace(write(frame));
    }

    /** Gives a link the handle that the client sees. */
    show(link) {
        let handle = 0;
        while (this.byShown.has(handle)) handle += 1;
        this.byShown.set(handle, link);
        link.shown = handle;
    }

    hide(link) {
        if (this.byShown.get(link.shown) === link) this.byShown.delete(link.shown);
    }

    /** Ends the session on both sides, with an error for the client. */
    close({ condition, description }) {
        if (!this.isUp) return;
        this.tell('end', { error: { condition, description, info: {} } });
        this.toNamespace(frame(this.channel, 'end', {}));
        this.isStruck = true;
        this.forgetLinks();
    }

    /** Returns what a flow to the namespace has to say about the session. */
    get windows() {
        const { next_outgoing_id: first, incoming_window, outgoing_window } = this.begin;
        return {
            next_incoming_id: (this.firstIncoming + this.received.came) >>> 0,
            incoming_window,
            next_outgoing_id: (first + this.sent.went) >>> 0,
            outgoing_window,
        };
    }

    forgetLinks() {
        for (const link of [...this.connection.links]) {
            if (link.session === this) this.connection.links.delete(link);
        }
    }
}

module.exports = { Session };
