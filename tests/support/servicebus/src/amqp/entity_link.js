'use strict';
// A link by which a client sends messages to a queue.

const { Message } = require('../message.js');
const { ServiceError, badRequest, notAllowed } = require('../errors.js');
const { close } = require('./strikes.js');
const { TransactionalState } = require('./hooks.js');
const outcomes = require('./outcomes.js');

/** The message format of a list of messages. */
const LIST = 0x80013700;

class EntityLink {
    constructor(broker, receiver, queue) {
        this.broker = broker;
        this.receiver = receiver;
        this.queue = queue;
        this.sends = true;
        queue.links.add(this);
    }

    /** Detaches the link with an error. */
    refuse(error) {
        close(this.receiver, error);
        this.closed();
    }

    closed() {
        this.queue.links.delete(this);
    }

    /** Takes what the client has sent, and answers. */
    receive(bytes, delivery) {
        const refuse = (error) => delivery.update(true, outcomes.rejected(error));
        const call = { operation: 'send', entity: this.queue.name, link: this.receiver, refuse };
        try {
            if (bytes.length > this.broker.options.maxMessageSize) {
                throw new ServiceError(
                    'amqp:link:message-size-exceeded',
                    `The message of ${bytes.length} bytes exceeds the limit of ${this.broker.options.maxMessageSize} bytes.`,
                );
            }
            const messages = read(bytes, delivery.format);
            call.garble = () => messages.forEach((message) => (message.isGarbled = true));
            this.broker.faults.run(call, () => this.perform(messages, delivery));
        } catch (error) {
            if (!(error instanceof ServiceError)) throw error;
            refuse(error);
        }
    }

    perform(messages, delivery) {
        // All or none.
        for (const message of messages) this.queue.check(message);
        const put = () => messages.forEach((message) => this.queue.put(message));
        const { remote_state: state } = delivery;
        if (!(state instanceof TransactionalState)) {
            put();
            return () => delivery.update(true, outcomes.accepted());
        }
        if (this.queue.settings.EnablePartitioning && messages.some(lacksKey)) {
            throw notAllowed('A message that is sent to a partitioned entity in a transaction needs a partition key.');
        }
        const check = () => messages.forEach((message) => this.queue.check(message));
        const work = { check, apply: put };
        this.broker.transactions.join(this.receiver.connection, state.id, work);
        return () => delivery.update(true, outcomes.transactional(state.id, outcomes.accepted()));
    }
}

function lacksKey(message) {
    return message.annotations.get('x-opt-partition-key') === undefined && message.sessionId === undefined;
}

function read(bytes, format) {
    try {
        const message = new Message(bytes);
        if (format !== LIST) return [message];
        return message.bodies('data').map((body) => new Message(body.value));
    } catch (error) {
        throw badRequest(`The message cannot be decoded: ${error.message}.`);
    }
}

module.exports = { EntityLink, LIST };
