'use strict';
// A connection of a client, and the one to the namespace that stands behind it.

const { Answer } = require('./answer.js');
const fromClient = require('./from_client.js');
const fromNamespace = require('./from_namespace.js');
const { Splitter, changed, frame, read, write } = require('./frames.js');

const LAST_WORDS = 5000;

class Connection {
    constructor(gateway, client, id) {
        this.gateway = gateway;
        this.client = client;
        this.options = { id };
        this.up = gateway.target.dial();
        this.sessions = new Map();
        this.bySessionOfNamespace = new Map();
        this.links = new Set();
        this.requests = new Map();
        this.open = new Answer();
        this.isOpening = false;
        this.waiting = [];
        this.isStruck = false;
        this.ended = new Promise((resolve) => this.up.once('close', resolve));
        this.socket = {
            destroy: () => this.cut(),
            pause: () => client.pause(),
            cork: () => client.cork(),
        };
        this.join(client, this.up, (bytes) => this.hear(bytes));
        this.join(this.up, client, (bytes) => this.hearNamespace(bytes));
    }

    get isUp() {
        return !this.isStruck;
    }

    /** Hears one side, as late as the gateway's distance demands; when it ends, the other ends too. */
    join(one, other, onFrame) {
        const { later } = this.gateway;
        const splitter = new Splitter((header) => this.isUp && other.write(header), onFrame);
        const hear = (chunk) => {
            try {
                splitter.push(chunk);
            } catch (error) {
                console.error(error);
                this.cut();
            }
        };
        one.on('data', (chunk) => later(() => hear(chunk)));
        one.on('error', (error) => {
            if (one === this.up) console.error(`the namespace: ${error.message}`);
        });
        const leave = () => later(() => this.leave(one, other));
        one.on('end', leave);
        one.on('close', leave);
    }

    leave(one, other) {
        if (one === this.client) this.gateway.connections.delete(this);
        // A client that was told why reads that first, and closes then.
        if (one === this.up && this.isStruck) return;
        this.isStruck = true;
        this.links.clear();
        other.end();
        setTimeout(() => other.destroy(), LAST_WORDS).unref();
    }

    /** Cuts the client off. What was written to the namespace still arrives there. */
    cut() {
        this.isStruck = true;
        this.links.clear();
        this.gateway.connections.delete(this);
        this.client.destroy();
        this.up.end();
        setTimeout(() => this.up.destroy(), LAST_WORDS).unref();
    }

    toClient(bytes) {
        this.client.write(bytes);
    }

    toNamespace(bytes) {
        this.up.write(bytes);
    }

    hear(bytes) {
        const heard = read(bytes);
        if (this.isStruck) {
            if (heard.name === 'close') this.client.end();
            return;
        }
        if (heard.name === 'open') this.opening(heard);
        else if (heard.name === 'sasl_init') this.toNamespace(write(this.addressed(heard)));
        else if (this.isOpening && !this.isForwarded) this.waiting.push(bytes);
        else fromClient.serve(this, heard);
    }

    hearNamespace(bytes) {
        if (this.isStruck) return;
        const heard = read(bytes);
        const pass = () => this.isUp && fromNamespace.serve(this, heard);
        if (heard.name === 'open' || (this.isOpening && !this.open.isAllowed)) this.open.come(pass);
        else pass();
    }

    /** Runs the opening of the connection through the faults. */
    opening(heard) {
        this.isOpening = true;
        const refuse = (error) => this.close(error);
        const link = { connection: this, session: this, close: refuse };
        const call = { operation: 'open', link, refuse, whenPerformed: (goOn) => this.open.whenCome(goOn) };
        this.gateway.faults.run(call, () => {
            this.toNamespace(write(this.addressed(heard)));
            this.isForwarded = true;
            for (const bytes of this.waiting.splice(0)) this.hear(bytes);
            return () => this.open.allow();
        });
    }

    /** Returns a frame with the name of the namespace's host. */
    addressed(heard) {
        return { ...heard, performative: changed(heard.performative, { hostname: this.gateway.target.host }) };
    }

    /** Closes the connection on both sides, with an error for the client. */
    close({ condition, description }) {
        if (this.isStruck) return;
        if (!this.open.isAllowed) this.toClient(write(frame(0, 'open', { container_id: 'gateway' })));
        this.toClient(write(frame(0, 'close', { error: { condition, description, info: {} } })));
        if (this.isForwarded) this.toNamespace(write(frame(0, 'close', {})));
        this.isStruck = true;
        this.links.clear();
        this.up.end();
        setTimeout(() => this.client.destroy(), LAST_WORDS).unref();
    }
}

module.exports = { Connection };
