'use strict';
// The frames of the namespace, on their way to a client.

const { answered } = require('./attach.js');
const { Delivery, range, ranges } = require('./ids.js');
const { changed, ofSession } = require('./frames.js');
const { respond } = require('./requests.js');

/** Serves a frame of the namespace. */
function serve(connection, frame) {
    const session = connection.bySessionOfNamespace.get(frame.channel);
    if (frame.name === 'begin') begin(connection, frame);
    else if (!SERVED[frame.name] || !session) connection.toClient(frame.raw);
    else if (session.isStruck) afterStrike(session, frame);
    else SERVED[frame.name](session, frame);
}

const SERVED = { attach: answered, detach, disposition, end, flow, transfer };

function begin(connection, frame) {
    const session = connection.sessions.get(frame.performative.remote_channel);
    session.firstIncoming = frame.performative.next_outgoing_id;
    connection.bySessionOfNamespace.set(frame.channel, session);
    connection.toClient(frame.raw);
    session.begun(frame.channel);
}

function afterStrike(session, { name }) {
    if (name !== 'end') return;
    session.connection.bySessionOfNamespace.delete(session.remote);
    session.end();
}

function end(session, frame) {
    const { connection } = session;
    connection.toClient(frame.raw);
    connection.bySessionOfNamespace.delete(session.remote);
    session.forgetLinks();
    session.end();
}

function detach(session, frame) {
    const link = session.byNamespace.get(frame.performative.handle);
    session.byNamespace.delete(frame.performative.handle);
    if (!link) return;
    link.end();
    if (link.isStruck) return;
    link.answer.come(() => {
        if (link.isStruck) return;
        link.hasEnded = true;
        session.connection.links.delete(link);
        if (link.hasLeft) session.hide(link);
        session.toClient({ ...frame, performative: changed(frame.performative, { handle: link.shown }) });
    });
}

function flow(session, frame) {
    const { performative } = frame;
    const { sent, received } = session;
    const fields = { next_outgoing_id: (performative.next_outgoing_id - received.behind) >>> 0 };
    if (isThere(performative.next_incoming_id)) fields.next_incoming_id = (performative.next_incoming_id + sent.behind) >>> 0;
    const { handle } = performative;
    if (!isThere(handle)) {
        session.toClient({ ...frame, performative: changed(performative, fields) });
        return;
    }
    const link = session.byNamespace.get(handle);
    const isForClient = link && !link.isStruck && !link.hasEnded && !(link.isStarved && !link.role);
    if (!isForClient) {
        session.toClient({ ...frame, performative: changed(ofSession(performative), fields) });
        return;
    }
    link.answer.come(() => {
        if (link.isStruck || link.hasEnded) return;
        Object.assign(fields, { handle: link.shown }, ofLink(link, performative));
        session.toClient({ ...frame, performative: changed(performative, fields) });
    });
}

function ofLink(link, { delivery_count: count, link_credit: credit }) {
    const shifted = isThere(count) ? (link.role ? count - link.behind : count + link.behind) >>> 0 : undefined;
    if (isThere(credit)) link.credit = credit;
    if (link.role && shifted !== undefined) link.count = shifted;
    return shifted === undefined ? {} : { delivery_count: shifted };
}

function transfer(session, frame) {
    session.received.came += 1;
    const link = session.byNamespace.get(frame.performative.handle);
    if (!link || link.isStruck || link.hasEnded) return;
    link.partial.push(frame);
    if (frame.performative.more && !frame.performative.aborted) return;
    const delivery = new Delivery(link, link.partial.splice(0));
    link.came += 1;
    if (delivery.isAborted) pass(delivery);
    else if (link.isForRequests) respond(delivery, () => pass(delivery));
    else deliver(delivery);
}

/** Runs a message of a queue through the faults. */
function deliver(delivery) {
    const { link } = delivery;
    const refuse = (error) => link.close(error);
    // The client still has the credit that the lost delivery took.
    const drop = () => link.grant();
    const call = { operation: 'deliver', entity: link.entity, link, refuse, drop };
    link.connection.gateway.faults.run(call, () => () => pass(delivery));
}

/** Gives a delivery to the client. */
function pass(delivery) {
    const { link, frames } = delivery;
    const { session } = link;
    link.answer.come(() => {
        if (link.isStruck || link.hasEnded || !session.isUp) return;
        session.received.number(delivery);
        session.received.went += frames.length;
        link.went += 1;
        link.count = (link.count + 1) >>> 0;
        link.credit -= 1;
        for (const frame of frames) {
            const fields = { handle: link.shown };
            if (isThere(frame.performative.delivery_id)) fields.delivery_id = delivery.target;
            session.toClient({ ...frame, performative: changed(frame.performative, fields) });
        }
    });
}

/** Passes on what the namespace says about deliveries, of each direction. */
function disposition(session, frame) {
    const { role, first, last, settled } = frame.performative;
    const ids = role ? session.sent : session.received;
    const passed = [];
    const shown = (delivery) => (role ? delivery.source : delivery.target);
    for (const id of range(first, last)) {
        const delivery = (role ? ids.byTarget : ids.bySource).get(id);
        if (!delivery) continue;
        if (settled) ids.forget(delivery);
        if (delivery.isAnswered || delivery.link.isStruck) continue;
        const { answer } = delivery;
        if (answer && !answer.isAllowed) answer.come(() => emit(session, frame, [shown(delivery)]));
        else passed.push(shown(delivery));
        if (answer?.isAllowed) answer.come(() => {});
    }
    emit(session, frame, passed);
}

function emit(session, frame, numbers) {
    for (const [first, last] of ranges(numbers)) {
        session.toClient({ ...frame, performative: changed(frame.performative, { first, last }) });
    }
}

const isThere = (value) => value !== undefined && value !== null;

module.exports = { pass, serve };
