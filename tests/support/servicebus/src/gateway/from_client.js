'use strict';
// The frames of a client, on their way to the namespace.

const { attach } = require('./attach.js');
const { Delivery, range, ranges } = require('./ids.js');
const { changed, ofSession } = require('./frames.js');
const { control, send } = require('./sending.js');
const { request } = require('./requests.js');
const { settle } = require('./settling.js');
const { Session } = require('./session.js');

/** Serves a frame of a client. */
function serve(connection, frame) {
    const session = connection.sessions.get(frame.channel);
    const { frames } = connection.gateway;
    if (COUNTED[frame.name]) COUNTED[frame.name](frames, frame.performative);
    if (frame.name === 'begin') begin(connection, frame);
    else if (!SERVED[frame.name] || !session) connection.toNamespace(frame.raw);
    else if (session.isStruck) afterStrike(session, frame);
    else SERVED[frame.name](session, frame);
}

const COUNTED = {
    transfer: (frames) => (frames.transfers += 1),
    disposition: (frames) => (frames.dispositions += 1),
    detach: (frames) => (frames.detaches += 1),
    flow: (frames, { drain }) => {
        frames.flows += 1;
        if (drain) frames.drains += 1;
    },
};

const SERVED = { attach, detach, disposition, end, flow, transfer };

function begin(connection, frame) {
    connection.sessions.set(frame.channel, new Session(connection, frame));
    connection.toNamespace(frame.raw);
}

/** The client answers the end of its session. */
function afterStrike(session, { name }) {
    const { sessions } = session.connection;
    if (name === 'end' && sessions.get(session.channel) === session) sessions.delete(session.channel);
}

function end(session, frame) {
    session.connection.toNamespace(frame.raw);
    session.hasLeft = true;
    session.forgetLinks();
    session.connection.sessions.delete(session.channel);
}

function detach(session, frame) {
    const link = session.byClient.get(frame.performative.handle);
    if (!link) {
        session.connection.toNamespace(frame.raw);
        return;
    }
    session.byClient.delete(link.handle);
    session.connection.links.delete(link);
    link.hasLeft = true;
    if (link.isStruck) {
        session.hide(link);
        return;
    }
    if (link.hasEnded) session.hide(link);
    if (link.isForwarded) session.connection.toNamespace(frame.raw);
    else link.close({ condition: 'amqp:link:detach-forced', description: 'The link was given up before it was attached.' });
}

function flow(session, frame) {
    const { performative } = frame;
    const { sent, received } = session;
    const fields = { next_outgoing_id: (performative.next_outgoing_id - sent.behind) >>> 0 };
    if (isThere(performative.next_incoming_id)) fields.next_incoming_id = (performative.next_incoming_id + received.behind) >>> 0;
    const { handle } = performative;
    const link = isThere(handle) ? session.byClient.get(handle) : undefined;
    if (!isThere(handle) || link?.isUp) {
        if (link && !link.isForwarded) {
            link.waiting.push(frame);
            return;
        }
        if (link) Object.assign(fields, ofLink(link, performative));
        session.toNamespace({ ...frame, performative: changed(performative, fields) });
        return;
    }
    session.toNamespace({ ...frame, performative: changed(ofSession(performative), fields) });
}

function ofLink(link, { delivery_count: count, link_credit: credit }) {
    if (link.role && isThere(credit)) link.credit = ((count ?? link.count) + credit - link.count) | 0;
    if (!isThere(count)) return {};
    return { delivery_count: (link.role ? count + link.behind : count - link.behind) >>> 0 };
}

function transfer(session, frame) {
    session.sent.came += 1;
    const link = session.byClient.get(frame.performative.handle);
    // What was on its way when the link was detached is lost.
    if (!link?.isUp) return;
    link.partial.push(frame);
    if (frame.performative.more && !frame.performative.aborted) return;
    const delivery = new Delivery(link, link.partial.splice(0));
    link.came += 1;
    link.credit -= 1;
    if (delivery.isAborted) forward(delivery);
    else if (link.isCoordinator) control(delivery, forward);
    else if (link.isForRequests) request(delivery, forward);
    else send(delivery, forward);
}

/** Gives a delivery to the namespace. */
function forward(delivery) {
    const { link, frames } = delivery;
    const { session } = link;
    if (!link.isUp) return;
    session.sent.number(delivery);
    delivery.isForwarded = true;
    link.went += 1;
    session.sent.went += frames.length;
    for (const frame of frames) {
        const { performative } = frame;
        const isOther = isThere(performative.delivery_id) && performative.delivery_id !== delivery.target;
        if (isOther || !frame.raw) {
            const renumbered = isOther ? changed(performative, { delivery_id: delivery.target }) : performative;
            session.toNamespace({ ...frame, performative: renumbered });
        } else {
            session.connection.toNamespace(frame.raw);
        }
    }
}

function disposition(session, frame) {
    const { performative } = frame;
    if (performative.role) {
        settle(session, frame);
        return;
    }
    const known = range(performative.first, performative.last).map((id) => session.sent.bySource.get(id));
    const ids = known.filter((delivery) => delivery).map(({ target }) => target);
    for (const [first, last] of ranges(ids)) {
        session.toNamespace({ ...frame, performative: changed(performative, { first, last }) });
    }
}

const isThere = (value) => value !== undefined && value !== null;

module.exports = { flow, serve };
