'use strict';
// What rhea lacks for this purpose, added to its modules. Loaded before anything else of rhea is used.

const Connection = require('rhea/lib/connection.js');
const { Sender } = require('rhea/lib/link.js');
const message = require('rhea/lib/message.js');
const Session = require('rhea/lib/session.js');
const terminus = require('rhea/lib/terminus.js');

// Messages arrive as bytes: `Message` reads them without losing types, and one that cannot be read costs only itself.
message.decode = (bytes) => bytes;

// The target of a transaction's control link.
const COORDINATOR = 0x30;
const unwrapTerminus = terminus.unwrap;
terminus.unwrap = (field) => {
    const isCoordinator = field?.descriptor && Number(field.descriptor.value) === COORDINATOR;
    return isCoordinator ? { coordinator: field } : unwrapTerminus(field);
};

// An outcome within a transaction.
const TRANSACTIONAL_STATE = 0x34;
class TransactionalState {
    constructor([id, outcome]) {
        this.id = id.value;
        this.outcome = outcome;
    }
}
TransactionalState.composite_type = 'transactional';
const unwrapOutcome = message.unwrap_outcome;
message.unwrap_outcome = (field) => {
    const isTransactional = field?.descriptor && Number(field.descriptor.value) === TRANSACTIONAL_STATE;
    return isTransactional ? new TransactionalState(field.value) : unwrapOutcome(field);
};

// The state of a transfer loses its descriptor in rhea; only transactions use it here.
const onTransfer = Session.prototype.on_transfer;
Session.prototype.on_transfer = function (frame) {
    const STATE = 7;
    const state = frame.performative.value[STATE];
    const unwrapped = state?.descriptor ? message.unwrap_outcome(state) : undefined;
    Object.defineProperty(frame.performative, 'state', { value: unwrapped });
    onTransfer.call(this, frame);
};

/** The frames that clients have sent, for tests that count them. */
const frames = { transfers: 0, flows: 0, drains: 0, dispositions: 0, detaches: 0, unattached: 0 };
for (const [method, count] of [
    ['on_transfer', () => (frames.transfers += 1)],
    ['on_disposition', () => (frames.dispositions += 1)],
    [
        'on_flow',
        ({ drain }) => {
            frames.flows += 1;
            if (drain) frames.drains += 1;
        },
    ],
]) {
    const handle = Session.prototype[method];
    Session.prototype[method] = function (frame) {
        count(frame.performative);
        handle.call(this, frame);
    };
}

// rhea joins the answers to deliveries that follow each other, and gives the second the answer of the first, whatever it
// is. Here only equal answers are joined.
Session.prototype._process = splitting(Session.prototype._process, 'outgoing', 'pending_dispositions');
Session.prototype._process = splitting(Session.prototype._process, 'incoming', 'updated');
function splitting(process, side, name) {
    return function () {
        const waiting = this[side][name];
        for (let i = 1; i < waiting.length; i++) {
            if (message.are_outcomes_equivalent(waiting[i - 1].state, waiting[i].state)) continue;
            this[side][name] = waiting.slice(0, i);
            process.call(this);
            this[side][name] = [...waiting.slice(i), ...this[side][name]];
            this._process();
            return;
        }
        process.call(this);
    };
}

// A disposition takes effect before the frames after it, such as the detach of the same link; rhea leaves it for later.
const onDisposition = Session.prototype.on_disposition;
Session.prototype.on_disposition = function (frame) {
    onDisposition.call(this, frame);
    for (const delivery of this.outgoing.updated.splice(0)) {
        const { link, remote_state: state } = delivery;
        const outcome = state?.constructor.composite_type;
        if (outcome) link.dispatch(outcome, link._context({ delivery }));
        if (delivery.remote_settled) link.dispatch('settled', link._context({ delivery }));
    }
};

// An attach is answered when `open` is called on the link, not before: it may have to wait. A link's name is unique among
// the links of one direction only, and is free again as soon as the peer has detached.
const onAttach = Session.prototype.on_attach;
Session.prototype.on_attach = function (frame) {
    const { name, role } = frame.performative;
    const old = this.links[name];
    if (old && (!old.state.remote_open || old.is_sender() !== role)) delete this.links[name];
    if (!this.links[name]) hold(role ? this.create_sender(name) : this.create_receiver(name));
    onAttach.call(this, frame);
};
const removeLink = Session.prototype.remove_link;
Session.prototype.remove_link = function (link) {
    const current = this.links[link.name];
    removeLink.call(this, link);
    if (current && current !== link) this.links[link.name] = current;
};

// The same for the opening of a connection.
const onOpen = Connection.prototype.on_open;
Connection.prototype.on_open = function (frame) {
    hold(this);
    onOpen.call(this, frame);
};

// Whoever detaches before the answer gets the answer first. A second detach of a link ends the session, as AMQP demands; rhea
// would end the connection.
const onDetach = Session.prototype.on_detach;
Session.prototype.on_detach = function (frame) {
    const { handle } = frame.performative;
    frames.detaches += 1;
    const link = this.remote.handles[handle];
    if (!link?.state.remote_open) {
        const description = `The handle ${handle} is not attached.`;
        frames.unattached += 1;
        this.close({ condition: 'amqp:session:unattached-handle', description, info: {} });
        return;
    }
    link.answer?.();
    onDetach.call(this, frame);
};

/** Keeps an endpoint from answering until `answer` is called; further calls of it do nothing. */
function hold(endpoint) {
    endpoint.open = () => {};
    endpoint.answer = () => {
        if (!Object.hasOwn(endpoint, 'open')) return;
        delete endpoint.open;
        endpoint.open();
    };
}

// The answer to a drain says so also when no credit was left to give back.
Sender.prototype._get_drain = function () {
    if (!this._draining) return false;
    if (this._drained && this.credit > 0) {
        this.delivery_count += this.credit;
        this.credit = 0;
    }
    return true;
};

module.exports = { TransactionalState, frames };
