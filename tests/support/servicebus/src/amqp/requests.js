'use strict';
// Request and answer over a pair of links, as `$cbs` and `$management` do it.

const { message, types } = require('rhea');
const { Message, entries, plain } = require('../message.js');
const outcomes = require('./outcomes.js');
const { close } = require('./strikes.js');
const { management, transactional } = require('../management/index.js');
const { ServiceError, badRequest, notAllowed } = require('../errors.js');

const CBS = '$cbs';

/** The link by which answers go to a client; answers wait here for credit, because rhea lets one link hold up all others. */
class AnswerLink {
    constructor(sender) {
        this.sender = sender;
        this.waiting = [];
        this.unsent = [];
    }

    send(bytes) {
        this.waiting.push(bytes);
        this.flow();
    }

    flow() {
        const { sender } = this;
        if (!sender.is_open()) return;
        const { outgoing } = sender.session;
        this.unsent = this.unsent.filter((delivery) => delivery.id >= outgoing.next_pending_delivery);
        while (this.waiting.length > 0 && sender.credit > this.unsent.length) {
            const delivery = sender.send(this.waiting.shift(), undefined, 0);
            // Nobody asks whether the answer has arrived.
            delivery.settled = true;
            this.unsent.push(delivery);
        }
    }
}

/** A link by which a client sends requests. */
class RequestLink {
    constructor(broker, receiver, entity, handlers) {
        this.broker = broker;
        this.receiver = receiver;
        this.entity = entity;
        this.handlers = handlers;
    }

    receive(bytes, delivery) {
        let request;
        try {
            request = new Message(bytes);
        } catch (error) {
            delivery.update(true, outcomes.rejected(badRequest(`The request cannot be decoded: ${error.message}.`)));
            return;
        }
        const { remote_state: state } = delivery;
        const transaction = state?.constructor.composite_type === 'transactional' ? state.id : undefined;
        const accepted = outcomes.accepted();
        const accept = () => delivery.update(true, transaction ? outcomes.transactional(transaction, accepted) : accepted);
        const refuse = (error) => delivery.update(true, outcomes.rejected(error));
        // The outcome of the transfer, without what the request asks for.
        this.broker.faults.run({ operation: 'accept', entity: this.entity, link: this.receiver, refuse }, () => accept);
        this.serve(request, transaction);
    }

    /** Serves a request: at once, or in part of those that can be made within a transaction, with its discharge. */
    serve(request, transaction) {
        const name = String(plain(request.applicationProperties.get('operation')));
        const operation = name.replace('com.microsoft:', '');
        const refuse = (error) => this.fail(request, error);
        const call = { operation, group: 'management', entity: this.entity, link: this.receiver, refuse };
        try {
            this.broker.faults.run(call, () => {
                const handler = this.handlers[name];
                if (!handler) throw new ServiceError('amqp:not-implemented', `'${name}' is not implemented.`, 501);
                const body = entries(request.section('value')?.value);
                const { connection } = this.receiver;
                this.broker.usedBy(connection, plain(request.applicationProperties.get('associated-link-name')));
                if (transaction) {
                    const check = this.checks?.[name];
                    if (!check) throw notAllowed(`'${name}' supports no transactions.`);
                    check(body);
                    const apply = () => handler(body, request, connection);
                    this.broker.transactions.join(connection, transaction, { check: () => check(body), apply });
                    return () => this.answer(request, 200, 'OK');
                }
                const answer = handler(body, request, connection);
                return () => this.answer(request, answer ? 200 : 204, 'OK', answer ?? {});
            });
        } catch (error) {
            refuse(error);
        }
    }

    fail(request, error) {
        if (!(error instanceof ServiceError)) console.error(error);
        const { condition = 'amqp:internal-error', description = String(error), status = 500 } = error;
        // Those of `$cbs` have none.
        this.answer(request, status, description, {}, this.entity === CBS ? undefined : condition);
    }

    answer(request, status, description, body, condition) {
        const link = this.broker.answerLink(this.receiver, request.replyTo);
        if (!link) return;
        link.send(answerTo(request, { status, description, body, condition }));
    }
}

/** A link by which a client manages the messages of a queue. It ends with the queue. */
class ManagementLink extends RequestLink {
    constructor(broker, receiver, queue) {
        super(broker, receiver, queue.name, management(queue));
        this.queue = queue;
        this.checks = transactional(queue);
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
}

/** Returns the bytes of an answer to a request. */
function answerTo(request, { status, description, body = {}, condition }) {
    const properties = {
        statusCode: types.wrap_int(status),
        'status-code': types.wrap_int(status),
        statusDescription: description,
        'status-description': description,
    };
    if (condition) properties.errorCondition = types.wrap_symbol(condition);
    const id = request.list('properties')[0];
    return message.encode({ correlation_id: id, application_properties: properties, body });
}

module.exports = { AnswerLink, ManagementLink, RequestLink, answerTo };
