'use strict';
// What clients decide about the messages that they have received.

const { Answer } = require('./answer.js');
const { range, ranges } = require('./ids.js');
const { changed } = require('./frames.js');
const outcomes = require('../amqp/outcomes.js');

const TRANSACTIONAL = 0x34;

/** Serves a client's disposition: a call for each delivery; those that no fault stops go on together. */
function settle(session, heard) {
    const { first, last, settled, state } = heard.performative;
    let together = [];
    const forward = (delivery) => {
        if (together) together.push(delivery);
        else pass(session, heard, [delivery]);
    };
    const isInTransaction = Number(state?.descriptor?.value) === TRANSACTIONAL;
    const kind = kindOf(isInTransaction ? state.value[1] : state);
    for (const id of range(first, last)) {
        const delivery = session.received.byTarget.get(id);
        // The gateway's own answers have no number of the namespace.
        if (delivery?.source === undefined || !delivery.link.isUp) continue;
        const { link } = delivery;
        if (link.isForRequests || kind === undefined || delivery.isDecided) {
            forward(delivery);
        } else {
            delivery.isDecided = !isInTransaction;
            decide(session, { delivery, kind, settled }, forward);
        }
    }
    pass(session, heard, together);
    together = undefined;
}

function decide(session, { delivery, kind, settled }, forward) {
    const { link, target } = delivery;
    const answer = new Answer();
    delivery.answer = answer;
    const refuse = (error) => {
        const fields = { role: false, first: target, last: target, settled: true, state: outcomes.rejected(error) };
        session.tell('disposition', fields);
    };
    const whenPerformed = (goOn) => (settled ? setImmediate(goOn) : answer.whenCome(goOn));
    const call = { operation: kind, group: 'settle', entity: link.entity, link, refuse, whenPerformed };
    session.connection.gateway.faults.run(call, () => {
        forward(delivery);
        return () => answer.allow();
    });
}

function kindOf(state) {
    try {
        return outcomes.read(state).kind;
    } catch {
        // Not an outcome: some other state, or none.
        return undefined;
    }
}

/** Gives the namespace a disposition for these deliveries. */
function pass(session, heard, deliveries) {
    const up = deliveries.filter(({ link }) => link.isUp);
    for (const [first, last] of ranges(up.map(({ source }) => source))) {
        session.toNamespace({ ...heard, performative: changed(heard.performative, { first, last }) });
    }
}

module.exports = { settle };
