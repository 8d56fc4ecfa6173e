'use strict';
// Decides what an attached link is for, and answers the attach.

const { types } = require('rhea');
const { AnswerLink, ManagementLink, RequestLink } = require('./requests.js');
const { DeliveryLink } = require('./delivery_link.js');
const { EntityLink } = require('./entity_link.js');
const { acceptSession, SESSION_FILTER } = require('./session_link.js');
const { cbs } = require('./cbs.js');
const { pathOf } = require('./claims.js');
const { close } = require('./strikes.js');
const { ServiceError, entityDisabled, notAllowed, resourceLimitExceeded, unauthorized } = require('../errors.js');

const CREDIT = 500;
const MANAGEMENT = '/$management';
const CBS = '$cbs';

/** Serves the attach of a link by which the client receives. */
function toClient(broker, sender) {
    const { source, target, snd_settle_mode, rcv_settle_mode } = sender.remote.attach;
    sender.address = pathOf(source?.address ?? '');
    Object.assign(sender.local.attach, { snd_settle_mode, rcv_settle_mode });
    begin(broker, sender, () => {
        sender.set_source(plainSource(source));
        sender.set_target({ address: target?.address });
        if (sender.address === CBS || sender.address.endsWith(MANAGEMENT)) return answers(broker, sender, target);
        return deliveries(broker, sender, source);
    });
}

function answers(broker, sender, target) {
    checkClaim(broker, sender);
    if (sender.address !== CBS) queueOf(broker, sender);
    const link = new AnswerLink(sender);
    sender.purpose = link;
    const known = broker.connections.get(sender.connection).answers;
    known.set(`${sender.address} ${target?.address}`, link);
    known.set(sender.address, link);
    return () => sender.answer();
}

function deliveries(broker, sender, source) {
    checkClaim(broker, sender);
    const queue = queueOf(broker, sender);
    if (['Disabled', 'ReceiveDisabled'].includes(queue.settings.Status)) throw entityDisabled(queue.name);
    const link = new DeliveryLink(broker, sender, queue);
    sender.purpose = link;
    const filter = source?.filter;
    if (!queue.settings.RequiresSession) {
        if (filter && SESSION_FILTER in filter) throw notAllowed(`'${queue.name}' has no sessions.`);
        return () => link.open();
    }
    if (!filter || !(SESSION_FILTER in filter)) {
        throw notAllowed('It is not possible for an entity that requires sessions to create a non-sessionful message receiver.');
    }
    return acceptSession(broker, link, filter[SESSION_FILTER] ?? undefined);
}

/** Serves the attach of a link by which the client sends. */
function fromClient(broker, receiver) {
    const { source, target, snd_settle_mode, rcv_settle_mode } = receiver.remote.attach;
    Object.assign(receiver.local.attach, { snd_settle_mode, rcv_settle_mode });
    receiver.local.attach.max_message_size = broker.options.maxMessageSize;
    receiver.address = target?.coordinator ? undefined : pathOf(target?.address ?? '');
    begin(broker, receiver, () => {
        receiver.set_source({ address: source?.address });
        if (target?.coordinator) {
            if (!broker.claims(receiver.connection).any) throw unauthorized('No token was put.');
            if (broker.options.sku === 'Basic') throw notAllowed('Transactions are not supported in the Basic tier.');
            receiver.local.attach.target = target.coordinator;
            const receive = (bytes, delivery) => broker.transactions.control(bytes, delivery, receiver);
            receiver.purpose = { receive, closed: () => broker.transactions.abandon(receiver) };
        } else {
            receiver.set_target({ address: target?.address });
            receiver.purpose = entity(broker, receiver);
        }
        return () => {
            receiver.answer();
            receiver.add_credit(receiver.credits ?? CREDIT);
        };
    });
}

function entity(broker, receiver) {
    checkClaim(broker, receiver);
    if (receiver.address === CBS) return new RequestLink(broker, receiver, CBS, cbs(broker));
    const queue = queueOf(broker, receiver);
    if (receiver.address.endsWith(MANAGEMENT)) return new ManagementLink(broker, receiver, queue);
    if (!queue.deadLetters) throw notAllowed(`Nothing can be sent to '${queue.name}'.`);
    if (!queue.takesSends) throw entityDisabled(queue.name);
    return new EntityLink(broker, receiver, queue);
}

/** Runs an attach through the faults; a refusal is an attach without a terminus and a detach with the error. */
function begin(broker, link, prepare) {
    broker.began(link);
    const { handleMax } = broker.options;
    if (broker.linksOf(link.connection, ({ session }) => session === link.session).length > handleMax) {
        close(link.session, resourceLimitExceeded(`The maximum number of handles allowed is ${handleMax}.`));
        return;
    }
    const refuse = (error) => {
        broker.ended(link);
        link.purpose = undefined;
        link.local.attach[link.is_sender() ? 'source' : 'target'] = undefined;
        link.answer();
        close(link, error);
    };
    const entityName = link.address?.replace(MANAGEMENT, '');
    const call = {
        operation: 'attach',
        group: groupOf(link),
        entity: entityName,
        // A link that was not answered is detached by refusing it.
        link: { session: link.session, connection: link.connection, close: refuse },
        refuse,
        starve: ({ credits = 0 }) => (link.credits = credits),
    };
    try {
        broker.faults.run(call, prepare);
    } catch (error) {
        if (!(error instanceof ServiceError)) throw error;
        refuse(error);
    }
}

function groupOf(link) {
    if (link.is_sender()) return 'attach-receiver';
    return link.remote.attach.target?.coordinator ? 'attach-coordinator' : 'attach-sender';
}

function checkClaim(broker, link) {
    if (link.address === CBS || broker.claims(link.connection).cover(link.address)) return;
    throw unauthorized(`Unauthorized access. 'Listen' or 'Send' claims are required for '${link.address}'.`);
}

function queueOf(broker, { address }) {
    return broker.namespace.find(address);
}

function plainSource(source) {
    const id = source?.filter?.[SESSION_FILTER];
    const fields = { address: source?.address };
    if (id !== undefined && id !== null) fields.filter = { [SESSION_FILTER]: types.wrap_string(String(id)) };
    return fields;
}

module.exports = { fromClient, toClient };
