'use strict';
// What the checks share: the emulator under test, its control endpoint and clients for it.

const { randomUUID } = require('node:crypto');
const assert = require('node:assert/strict');
const { ServiceBusAdministrationClient, ServiceBusClient } = require('@azure/service-bus');

const WAIT = { maxWaitTimeInMs: 5000 };

class Emulator {
    constructor(ports) {
        Object.assign(this, ports);
        this.queues = 0;
    }

    /** Calls the control endpoint and returns its answer. */
    async control(method, path, body) {
        const url = `http://127.0.0.1:${this.controlPort}/${path}`;
        const answer = await fetch(url, { method, body: body && JSON.stringify(body) });
        assert.ok(answer.ok, `${method} ${path}: ${answer.status}`);
        return answer.json();
    }

    /** Makes a queue for one check and returns its name. */
    async queue(settings = {}) {
        const name = `js-${++this.queues}`;
        await this.control('PUT', `queues/${name}`, settings);
        return name;
    }

    shown(queue) {
        return this.control('GET', `queues/${encodeURIComponent(queue)}`);
    }

    plant(operation, action, fields = {}) {
        return this.control('POST', 'faults', { operation, action, ...fields });
    }

    /** Ends all links of a queue, and waits until the client has noticed. */
    async detach(queue) {
        await this.control('POST', 'strike', { action: 'detach', entity: queue });
        while ((await this.control('GET', `links?entity=${queue}`)).length > 0);
    }

    advance(seconds) {
        return this.control('POST', 'clock', { advance: seconds * 1000 });
    }

    /** Returns the connection string for the port with TLS. */
    get overTls() {
        const keys = this.connectionString.slice(this.connectionString.indexOf(';') + 1);
        return `Endpoint=sb://localhost:${this.tlsPort};${keys.replace('UseDevelopmentEmulator=true', '')}`;
    }

    client(connectionString = this.connectionString, retries = 0) {
        const retryOptions = { maxRetries: retries, timeoutInMs: 5000, retryDelayInMs: 10 };
        return new ServiceBusClient(connectionString, { retryOptions });
    }

    admin() {
        return new ServiceBusAdministrationClient(this.overTls);
    }

    /** Runs a check with a client, a sender and a receiver of a queue. */
    async opened(queue, check, { connectionString, retries, receiver: options } = {}) {
        const client = this.client(connectionString, retries);
        try {
            const receiver = client.createReceiver(queue, options);
            await check({ client, sender: identified(client.createSender(queue)), receiver });
        } finally {
            await client.close();
        }
    }
}

/** Gives each message an id: without one this client fails when it closes. */
function identified(sender) {
    const send = sender.sendMessages.bind(sender);
    const withId = (message) => ({ messageId: randomUUID(), ...message });
    const isBatch = (messages) => typeof messages.tryAddMessage === 'function';
    sender.sendMessages = (messages) => {
        if (isBatch(messages)) return send(messages);
        return send(Array.isArray(messages) ? messages.map(withId) : withId(messages));
    };
    return sender;
}

/** Receives one message, which must come. */
async function one(receiver) {
    const [message] = await receiver.receiveMessages(1, WAIT);
    assert.ok(message, 'a message was expected');
    return message;
}

/** Receives nothing. */
async function none(receiver) {
    assert.deepEqual(await receiver.receiveMessages(1, { maxWaitTimeInMs: 500 }), []);
}

const code = (expected) => (error) => {
    assert.equal(error.code, expected, error.message);
    return true;
};

module.exports = { Emulator, code, identified, none, one };
