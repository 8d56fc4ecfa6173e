'use strict';
// Messages of clients to queues, and requests to the coordinator of transactions.

const { Answer } = require('./answer.js');
const outcomes = require('../amqp/outcomes.js');
const { Message } = require('../message.js');

const DECLARE = [0x31, 'amqp:declare:list'];

/** Serves a message to a queue. */
function send(delivery, forward) {
    run(delivery, { operation: 'send', entity: delivery.link.entity }, forward);
}

/** Serves a request to the coordinator. */
function control(delivery, forward) {
    const { described } = new Message(delivery.bytes).section('value') ?? {};
    const operation = DECLARE.includes(described) ? 'declare' : 'discharge';
    run(delivery, { operation, group: 'transaction' }, forward);
}

function run(delivery, call, forward) {
    const { link } = delivery;
    delivery.answer = new Answer();
    const refuse = (error) => answer(delivery, outcomes.rejected(error));
    // Nobody answers what was settled when it was sent.
    const whenPerformed = (goOn) => (delivery.isSettled ? setImmediate(goOn) : delivery.answer.whenCome(goOn));
    link.connection.gateway.faults.run({ ...call, link, refuse, whenPerformed }, () => {
        forward(delivery);
        return () => delivery.answer.allow();
    });
}

/** Settles a client's delivery with a state of the gateway's own. */
function answer({ link, source, isSettled }, state) {
    if (isSettled) return;
    const { session } = link;
    session.tell('disposition', { role: true, first: source, last: source, settled: true, state });
}

module.exports = { answer, control, send };
