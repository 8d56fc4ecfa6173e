'use strict';
// Requests to `$cbs` and `$management`, and their answers.

const { types } = require('rhea');
const { Answer } = require('./answer.js');
const { changed, frame } = require('./frames.js');
const { Delivery } = require('./ids.js');
const { answer: settleAs } = require('./sending.js');
const { answerTo } = require('../amqp/requests.js');
const outcomes = require('../amqp/outcomes.js');
const { Message, identity, plain } = require('../message.js');

const CORRELATION_ID = 5;
const PUT_TOKEN = 'put-token';

/** Serves a request of a client. */
function request(delivery, forward) {
    const { link } = delivery;
    const message = new Message(delivery.bytes);
    const operation = String(plain(message.applicationProperties.get('operation'))).replace('com.microsoft:', '');
    const answer = new Answer();
    link.connection.requests.set(keyOf(link, message.messageId), answer);
    const refuse = ({ condition = 'amqp:internal-error', description = '', status = 500 }) =>
        answerFor(link, message, answerTo(message, { status, description, condition }));
    const whenPerformed = (goOn) => answer.whenCome(goOn);
    const call = { operation, group: 'management', entity: link.entity, link, refuse, whenPerformed };
    link.connection.gateway.faults.run(call, () => {
        forward(operation === PUT_TOKEN ? signed(delivery, message) : delivery);
        return () => answer.allow();
    });
    if (delivery.isForwarded) return;
    // The service takes each request, whatever becomes of it.
    delivery.isAnswered = true;
    settleAs(delivery, outcomes.accepted());
}

/** Puts a token of the namespace's key in the place of the client's. */
function signed(delivery, message) {
    const { tokens } = delivery.link.connection.gateway;
    const name = plain(message.applicationProperties.get('name'));
    const token = plain(message.section('value')?.value);
    if (typeof name !== 'string' || token === undefined) return delivery;
    const { audience, token: ours } = tokens.exchange(name, String(token));
    const named = new Map([
        ['name', types.wrap_string(audience)],
        ['type', types.wrap_string('servicebus.windows.net:sastoken')],
    ]);
    const payload = message.replaced(named, types.wrap_string(ours));
    const [first] = delivery.frames;
    const frames = [{ ...first, raw: undefined, performative: changed(first.performative, { more: false }), payload }];
    // All transfers of the request have come; one goes.
    return Object.assign(delivery, { frames });
}

/** Passes an answer on when the faults allow it. */
function respond(delivery, pass) {
    const { link } = delivery;
    const id = new Message(delivery.bytes).list('properties')[CORRELATION_ID];
    const key = keyOf(link, identity(id));
    const answer = link.connection.requests.get(key);
    link.connection.requests.delete(key);
    if (answer) answer.come(pass);
    else pass();
}

const keyOf = (link, id) => `${link.address} ${id}`;

/** Sends an answer of the gateway's own. */
function answerFor(asked, message, payload) {
    const links = [...asked.connection.links].filter((link) => link.role && link.isForRequests && link.address === asked.address);
    const isMeant = (link) => plain(link.attach.target?.value?.[0]) === message.replyTo;
    const link = links.find(isMeant) ?? links[0];
    if (!link) return;
    const fields = { handle: 0, delivery_id: 0, delivery_tag: Buffer.from('gateway'), message_format: 0, settled: true };
    const delivery = new Delivery(link, [frame(link.session.remote, 'transfer', fields, payload)]);
    delivery.source = undefined;
    require('./from_namespace.js').pass(delivery);
}

module.exports = { request, respond };
