'use strict';
// Attaches, with the names of the namespace on the way there and those of the client on the way back.

const { types } = require('rhea');
const { changed } = require('./frames.js');
const { ADDRESS, Link } = require('./link.js');

/** Serves a client's attach. */
function attach(session, frame) {
    const { gateway } = session.connection;
    const link = new Link(session, frame.performative);
    session.byClient.set(link.handle, link);
    session.connection.links.add(link);
    const refuse = (error) => {
        session.connection.links.delete(link);
        link.close(error);
    };
    const call = {
        operation: 'attach',
        group: groupOf(link),
        entity: link.entity,
        link: { session, connection: session.connection, close: refuse },
        refuse,
        starve: () => (link.isStarved = true),
        whenPerformed: (goOn) => link.answer.whenCome(goOn),
    };
    gateway.faults.run(call, () => {
        forward(link, frame);
        return () => link.answer.allow();
    });
}

function groupOf(link) {
    if (link.role) return 'attach-receiver';
    return link.isCoordinator ? 'attach-coordinator' : 'attach-sender';
}

function forward(link, frame) {
    if (!link.isUp) return;
    const { session } = link;
    const { names } = session.connection.gateway;
    session.attaching.set(keyOf(link), link);
    const { performative } = frame;
    const named = changed(performative, {});
    if (!link.isCoordinator) {
        const field = link.role ? 'source' : 'target';
        named.value[PLACE[field]] = renamed(performative[field], names.toNamespace(link.given));
    }
    session.toNamespace({ ...frame, performative: named });
    link.isForwarded = true;
    // Loaded late, because the two modules need each other.
    for (const waiting of link.waiting.splice(0)) require('./from_client.js').flow(session, waiting);
}

/** Serves the namespace's answer to an attach. */
function answered(session, frame) {
    const { performative } = frame;
    const key = keyOf({ name: performative.name, role: !performative.role });
    const link = session.attaching.get(key);
    if (!link) throw new Error('The namespace answers an attach that nobody has sent.');
    session.attaching.delete(key);
    link.remote = performative.handle;
    session.byNamespace.set(link.remote, link);
    link.count = performative.initial_delivery_count ?? 0;
    link.answer.come(() => {
        if (!link.isUp) return;
        session.show(link);
        const named = changed(performative, { handle: link.shown });
        const field = link.role ? 'source' : 'target';
        const original = link.attach[field]?.value?.[ADDRESS];
        if (!link.isCoordinator && performative[field]?.value?.[ADDRESS] && original) {
            named.value[PLACE[field]] = renamed(performative[field], original.value);
        }
        session.toClient({ ...frame, performative: named });
    });
}

const PLACE = { source: 5, target: 6 };
const keyOf = ({ name, role }) => `${role} ${name}`;

/** Returns a source or target with another address. */
function renamed(terminus, address) {
    const fields = [...terminus.value];
    fields[ADDRESS] = types.wrap_string(address);
    return types.described(terminus.descriptor, types.List32(fields));
}

module.exports = { answered, attach };
