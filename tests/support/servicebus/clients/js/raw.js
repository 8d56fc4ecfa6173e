'use strict';
// A client of bare AMQP, for what the stock clients do not do: transactions, drains, links without a token.

const { createHmac } = require('node:crypto');
const { once } = require('node:events');
const { setImmediate } = require('node:timers/promises');
const rhea = require('rhea');

const { message, types } = rhea;
const COORDINATOR = 0x30;
const [DECLARE, DISCHARGE] = [0x31, 0x32];
const TRANSACTIONAL_STATE = 0x34;
const STATE_OF_TRANSFER = 7;

const described = (code, fields) => types.described(types.wrap_ulong(code), types.wrap_list(fields));

class Raw {
    /** Opens a connection and a session of it. */
    static async connect(emulator) {
        const container = rhea.create_container();
        for (const event of ['connection_error', 'session_error', 'sender_error', 'receiver_error', 'disconnected']) {
            container.on(event, () => {});
        }
        const options = { host: '127.0.0.1', port: emulator.port, username: 'anonymous', reconnect: false };
        const raw = new Raw();
        raw.emulator = emulator;
        raw.connection = container.connect(options);
        await once(raw.connection, 'connection_open');
        raw.session = raw.connection.create_session();
        raw.session.begin();
        raw.tagTransfers();
        return raw;
    }

    /** Puts a token for an entity. */
    async claim(entity, seconds = 3600) {
        const fields = Object.fromEntries(this.emulator.connectionString.split(';').map((part) => part.split(/=(.*)/s)));
        const resource = encodeURIComponent(`sb://emulator/${entity}`);
        const expiry = Math.ceil(Date.now() / 1000) + seconds;
        const mac = createHmac('sha256', fields.SharedAccessKey).update(`${resource}\n${expiry}`).digest('base64');
        const token =
            `SharedAccessSignature sr=${resource}&sig=${encodeURIComponent(mac)}&se=${expiry}` +
            `&skn=${fields.SharedAccessKeyName}`;
        const answers = this.session.open_receiver({ source: '$cbs', target: { address: 'answers' } });
        const requests = this.session.open_sender('$cbs');
        await once(requests, 'sendable');
        const properties = { operation: 'put-token', type: 'servicebus.windows.net:sastoken', name: `sb://emulator/${entity}` };
        requests.send({ message_id: 'claim', reply_to: 'answers', application_properties: properties, body: token });
        const [answer] = await once(answers, 'message');
        answers.close();
        requests.close();
        return answer.message.application_properties['status-code'];
    }

    async sender(entity) {
        const sender = this.session.open_sender(entity);
        await once(sender, 'sendable');
        return sender;
    }

    /** Opens a receiver without credit that settles nothing by itself. */
    async receiver(entity, options = {}) {
        const usual = { source: entity, credit_window: 0, autoaccept: false, rcv_settle_mode: 1 };
        const receiver = this.session.open_receiver({ ...usual, ...options });
        await once(receiver, 'receiver_open');
        return receiver;
    }

    /** Opens a link to the coordinator of transactions. */
    async coordinator() {
        const link = this.session.create_sender('coordinator');
        link.local.attach.source = described(0x28, []);
        link.local.attach.target = described(COORDINATOR, []);
        link.attach();
        await once(link, 'sendable');
        return link;
    }

    /** Sends a message, within a transaction if there is one; resolves to the state of the answer. */
    async send(sender, body, transaction) {
        this.state = transaction && described(TRANSACTIONAL_STATE, [types.wrap_binary(transaction)]);
        const delivery = Buffer.isBuffer(body) ? sender.send(body, undefined, 0) : sender.send(body);
        await once(sender, 'settled');
        this.state = undefined;
        return delivery.remote_state;
    }

    /** Begins a transaction and returns its id. */
    async declare(coordinator) {
        const state = await this.send(coordinator, request(described(DECLARE, [])));
        return state.value[0].value;
    }

    /** Ends a transaction; resolves to the state of the answer. */
    discharge(coordinator, id, fail) {
        const fields = [types.wrap_binary(id), types.wrap_boolean(fail)];
        return this.send(coordinator, request(described(DISCHARGE, fields)));
    }

    /** Accepts a delivery within a transaction; resolves when that is on its way, because rhea sends transfers first. */
    async accept(delivery, transaction) {
        const outcome = message.accepted().described();
        delivery.update(false, described(TRANSACTIONAL_STATE, [types.wrap_binary(transaction), outcome]));
        await setImmediate();
    }

    /** rhea has no state on transfers: puts it into the frames. */
    tagTransfers() {
        const { session } = this;
        const output = session.output.bind(session);
        session.output = (frame, payload) => {
            const isTransfer = payload !== undefined;
            if (isTransfer && this.state) frame.value[STATE_OF_TRANSFER] = this.state;
            output(frame, payload);
        };
    }

    async close() {
        this.connection.close();
        await once(this.connection, 'connection_close');
    }
}

/** Returns the bytes of a message whose body is a described value, which rhea cannot write. */
function request(value) {
    const writer = new types.Writer();
    writer.write(value);
    return Buffer.concat([Buffer.from([0x00, 0x53, 0x77]), writer.toBuffer()]);
}

/** Receives one message; resolves to its delivery. */
async function take(receiver) {
    receiver.add_credit(1);
    const [{ delivery, message: received }] = await once(receiver, 'message');
    return Object.assign(delivery, { received });
}

module.exports = { Raw, take };
