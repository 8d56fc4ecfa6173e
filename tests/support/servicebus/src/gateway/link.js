'use strict';
const { Answer } = require('./answer.js');
const { bare, entityOf, isForRequests } = require('./names.js');
const { frame } = require('./frames.js');

const COORDINATOR = 0x30;
const ADDRESS = 0;

/** A link between a client and the namespace. */
class Link {
    constructor(session, attach) {
        const { name, handle } = attach;
        // True and false may come as 1 and 0.
        const role = Boolean(attach.role);
        Object.assign(this, { session, attach, name, role, handle });
        this.isCoordinator = isCoordinator(attach.target);
        this.given = this.isCoordinator ? undefined : (addressOf(role ? attach.source : attach.target) ?? '');
        this.address = this.isCoordinator ? undefined : bare(this.given).toLowerCase();
        this.entity = this.isCoordinator ? undefined : entityOf(this.given);
        this.isForRequests = !this.isCoordinator && isForRequests(this.given);
        // The handles of the answer: that of the namespace, and the one that the client sees.
        this.remote = undefined;
        this.shown = undefined;
        this.answer = new Answer();
        this.waiting = [];
        this.partial = [];
        // Deliveries: those that a fault has kept back make the difference.
        this.came = 0;
        this.went = 0;
        // The sender's count of deliveries, as the receiver knows it.
        this.count = 0;
        this.credit = 0;
        this.isForwarded = false;
        this.isStarved = false;
        this.isStruck = false;
        this.hasLeft = false;
        this.hasEnded = false;
        this.ended = new Promise((resolve) => (this.end = resolve));
    }

    get connection() {
        return this.session.connection;
    }

    is_sender() {
        return this.role;
    }

    get isUp() {
        return !this.isStruck && !this.hasLeft && !this.hasEnded && this.session.isUp;
    }

    /** Returns by how many deliveries the receiver is behind the sender. */
    get behind() {
        return this.came - this.went;
    }

    /** Detaches the link on both sides, with an error for the client; before it was answered, that is a refusal. */
    close({ condition, description }) {
        if (this.isStruck || this.hasEnded || !this.session.isUp) return;
        const { session } = this;
        if (this.shown === undefined) this.refuseAttach();
        const error = { condition, description, info: {} };
        session.tell('detach', { handle: this.shown, closed: true, error });
        if (this.isForwarded && !this.hasLeft) {
            session.toNamespace(frame(session.channel, 'detach', { handle: this.handle, closed: true }));
        } else {
            this.end();
        }
        this.isStruck = true;
        if (this.hasLeft) session.hide(this);
    }

    /** Gives the namespace the credit that the client believes to have. */
    grant() {
        const { session, handle, credit } = this;
        const fields = { ...session.windows, handle, delivery_count: (this.count + this.behind) >>> 0, link_credit: credit };
        if (this.isUp) session.toNamespace(frame(session.channel, 'flow', fields));
    }

    /** Answers the attach without a terminus, which says that a detach follows. */
    refuseAttach() {
        const { session, name, role, attach } = this;
        session.show(this);
        const { snd_settle_mode, rcv_settle_mode } = attach;
        const fields = { name, handle: this.shown, role: !role, snd_settle_mode, rcv_settle_mode };
        if (role) fields.initial_delivery_count = 0;
        session.tell('attach', fields);
    }
}

function isCoordinator(terminus) {
    return terminus?.descriptor !== undefined && Number(terminus.descriptor.value) === COORDINATOR;
}

function addressOf(terminus) {
    return terminus?.value?.[ADDRESS]?.value ?? undefined;
}

module.exports = { ADDRESS, Link };
