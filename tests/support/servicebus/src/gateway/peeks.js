'use strict';
// Looks at the messages of queues over a connection of the gateway's own, which no fault strikes.

const { once } = require('node:events');
const rhea = require('rhea');
const { inAnHour } = require('./target.js');
const { Message, number, plain } = require('../message.js');

const { types } = rhea;
const PAGE = 250;
const PATIENCE = 15_000;
const STATES = ['active', 'deferred', 'scheduled'];

class Peeks {
    constructor(target) {
        this.target = target;
        this.connection = undefined;
        this.queues = new Map();
        this.turn = Promise.resolve();
    }

    /** Returns what the messages of a queue are, by a name of the namespace. */
    all(queue) {
        const looking = this.turn.then(() => this.look(queue).catch(() => this.lookAgain(queue)));
        this.turn = looking.catch(() => {});
        return looking;
    }

    /** The connection may have ended, or its token. */
    lookAgain(queue) {
        this.close();
        return this.look(queue);
    }

    async look(queue) {
        const link = await this.requests(queue);
        const found = [];
        for (let from = 0; ; from = found.at(-1).sequence + 1) {
            const body = { 'from-sequence-number': types.Long(from), 'message-count': types.Int(PAGE) };
            const answer = await link.ask({ operation: 'com.microsoft:peek-message' }, body);
            const page = (answer.body?.messages ?? []).map(shown);
            found.push(...page);
            // A page may be short, so that only an empty one is the end.
            if (page.length === 0) return found;
        }
    }

    async requests(queue) {
        this.connection ??= await this.open();
        const known = this.queues.get(queue);
        if (known) return known;
        const tokens = await Requests.open(this.connection, '$cbs');
        const name = `sb://${this.target.host}/${queue}`;
        const token = this.target.sign(queue, inAnHour());
        await tokens.ask({ operation: 'put-token', type: 'servicebus.windows.net:sastoken', name }, token);
        tokens.close();
        const opened = await Requests.open(this.connection, `${queue}/$management`);
        this.queues.set(queue, opened);
        // The namespace ends the link with the queue; one of that name may be made again.
        opened.sender.on('sender_close', () => this.queues.get(queue) === opened && this.queues.delete(queue));
        return opened;
    }

    async open() {
        const { target } = this;
        const container = rhea.create_container();
        for (const event of ['connection_error', 'session_error', 'sender_error', 'receiver_error', 'disconnected', 'error']) {
            container.on(event, () => {});
        }
        const connection = container.connect({
            hostname: target.host,
            username: 'anonymous',
            reconnect: false,
            max_frame_size: 65536,
            idle_time_out: 60_000,
            connection_details: () => ({ connect: (port, host, details, connected) => target.dial(connected) }),
        });
        connection.on('disconnected', () => this.connection === connection && this.forget());
        await soon(once(connection, 'connection_open'));
        return connection;
    }

    close() {
        const { connection } = this;
        this.forget();
        connection?.close();
    }

    forget() {
        this.connection = undefined;
        this.queues.clear();
    }
}

/** A pair of links for requests and their answers. */
class Requests {
    static async open(connection, node) {
        const requests = new Requests();
        requests.lastId = 0;
        requests.waiting = new Map();
        requests.replyTo = `peeks-${node}`;
        requests.session = connection.create_session();
        requests.session.begin();
        const receiver = requests.session.open_receiver({ source: node, target: { address: requests.replyTo } });
        receiver.on('message', ({ message }) => requests.waiting.get(message.correlation_id)?.(message));
        requests.sender = requests.session.open_sender(node);
        await soon(Promise.all([once(requests.sender, 'sendable'), once(receiver, 'receiver_open')]));
        return requests;
    }

    async ask(properties, body) {
        const id = String(++this.lastId);
        const answer = new Promise((resolve) => this.waiting.set(id, resolve));
        this.sender.send({ message_id: id, reply_to: this.replyTo, application_properties: properties, body });
        const message = await soon(answer);
        this.waiting.delete(id);
        const status = message.application_properties['status-code'] ?? message.application_properties.statusCode;
        if (status >= 300) throw new Error(`the namespace answers ${status} to ${properties.operation}`);
        return message;
    }

    close() {
        this.session.close();
    }
}

/** Fails when the answer does not come in time. */
function soon(answer) {
    let timer;
    const late = new Promise((_, reject) => {
        timer = setTimeout(() => reject(new Error('the namespace does not answer')), PATIENCE);
    });
    return Promise.race([answer, late]).finally(() => clearTimeout(timer));
}

function shown({ message: bytes }) {
    const message = new Message(bytes);
    const annotation = (name) => message.annotations.get(name);
    const time = (name) => (plain(annotation(name)) === undefined ? undefined : Number(plain(annotation(name))));
    return {
        sequence: number(annotation('x-opt-sequence-number')),
        id: message.messageId,
        session: message.sessionId,
        state: STATES[plain(annotation('x-opt-message-state')) ?? 0],
        deliveries: plain(message.header[4]) ?? 0,
        enqueued: time('x-opt-enqueued-time'),
        scheduledFor: time('x-opt-scheduled-enqueue-time'),
        properties: Object.fromEntries([...message.applicationProperties].map(([name, value]) => [name, plain(value)])),
    };
}

module.exports = { Peeks, STATES };
