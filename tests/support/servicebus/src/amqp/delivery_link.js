'use strict';
// A link by which the emulator delivers a queue's messages to a client.

const { settle, check } = require('../store/settlement.js');
const outcomes = require('./outcomes.js');
const { ServiceError, sessionLockLost } = require('../errors.js');
const { close } = require('./strikes.js');

const PRESETTLED = 1;

class DeliveryLink {
    constructor(broker, sender, queue) {
        this.broker = broker;
        this.sender = sender;
        this.queue = queue;
        this.session = undefined;
        this.deletes = sender.remote.attach.snd_settle_mode === PRESETTLED;
        // Deliveries by id that the client has not settled.
        this.unsettled = new Map();
        // Deliveries that rhea has not written yet: they have not used up their credit.
        this.unsent = [];
        this.isClosed = false;
    }

    get lane() {
        return this.session?.lane ?? this.queue.lane;
    }

    /** Answers the attach and begins to deliver. */
    open() {
        // The client may have gone while the answer was delayed.
        if (this.isClosed) return;
        this.queue.links.add(this);
        this.sender.answer();
        this.lane.add(this);
    }

    /** Returns how many messages may be delivered now. */
    get credit() {
        const { sender } = this;
        if (!sender.is_open()) return 0;
        const { outgoing } = sender.session;
        this.unsent = this.unsent.filter((delivery) => delivery.id >= outgoing.next_pending_delivery);
        return outgoing.available() > 0 ? sender.credit - this.unsent.length : 0;
    }

    /** Delivers a message. */
    deliver(stored, token) {
        // The bytes are those of this moment, whatever a fault does to their sending.
        const bytes = stored.encode();
        const call = this.call('deliver', (error) => this.refuse(error));
        this.broker.faults.run(call, () => () => this.transfer(bytes, token));
    }

    transfer(bytes, token) {
        if (!this.sender.is_open()) return;
        this.broker.used(this.sender);
        const delivery = this.sender.send(bytes, token, 0);
        this.unsent.push(delivery);
        if (!this.deletes) this.unsettled.set(delivery.id, token);
    }

    /** Serves what the client asks by its flow. */
    flow() {
        this.lane.pump();
    }

    drain() {
        this.lane.pump();
        this.sender.set_drained(true);
    }

    /** Returns the token of a delivery that the client settles; none after the link was detached. */
    taken(delivery) {
        return this.isUp ? this.unsettled.get(delivery.id) : undefined;
    }

    get isUp() {
        const { state, session, connection } = this.sender;
        return [state, session.state, connection.state].every(({ local_open: open }) => open);
    }

    /** Applies what the client decided about a delivery, and answers. */
    settle(delivery) {
        const token = this.taken(delivery);
        if (!token) return;
        this.broker.used(this.sender);
        this.unsettled.delete(delivery.id);
        const refuse = (error) => delivery.update(true, outcomes.rejected(error));
        attempt(refuse, () => {
            const outcome = outcomes.read(delivery.remote_state);
            this.broker.faults.run(this.call(outcome.kind, refuse, 'settle'), () => {
                this.checkSession();
                settle(this.queue, token, outcome);
                return () => delivery.update(true, outcomes.echo(outcome.kind));
            });
        });
    }

    /** Notes a decision that a transaction makes final; after a rollback the client may settle the delivery again. */
    settleInTransaction(delivery) {
        const token = this.taken(delivery);
        if (!token) return;
        const { id, outcome: state } = delivery.remote_state;
        const refuse = (error) => delivery.update(true, outcomes.rejected(error));
        attempt(refuse, () => {
            const outcome = outcomes.read(state);
            this.broker.faults.run(this.call(outcome.kind, refuse, 'settle'), () => {
                this.checkSession();
                check(this.queue, token);
                const answer = outcomes.transactional(id, outcomes.echo(outcome.kind));
                const apply = () => {
                    settle(this.queue, token, outcome);
                    this.unsettled.delete(delivery.id);
                    if (this.isUp) delivery.update(true, answer);
                };
                this.broker.transactions.join(this.sender.connection, id, { check: () => check(this.queue, token), apply });
                return () => delivery.update(false, answer);
            });
        });
    }

    checkSession() {
        if (this.session && this.session.receiver !== this) throw sessionLockLost();
    }

    call(operation, refuse, group) {
        const { sender: link } = this;
        return { operation, group, entity: this.queue.name, link, refuse: fallible(refuse) };
    }

    /** Detaches the link with an error. */
    refuse(error) {
        close(this.sender, error);
        this.closed();
    }

    /** Frees what the link holds; the locks of messages stay unless the options say otherwise, those of a session end. */
    closed() {
        this.isClosed = true;
        this.queue.links.delete(this);
        this.lane.drop(this);
        if (this.session?.receiver === this) this.session.unlock(0);
        const { locksEndWithLinks, countsDroppedLocks } = this.broker.options;
        if (!locksEndWithLinks || this.session) return;
        const { locks } = this.queue;
        for (const token of this.unsettled.values()) locks.drop(token, countsDroppedLocks ? 1 : 0);
    }
}

/** Runs an action; a refusal of the service becomes an answer. */
function attempt(refuse, action) {
    try {
        action();
    } catch (error) {
        if (!(error instanceof ServiceError)) throw error;
        refuse(error);
    }
}

const fallible = (refuse) => (error) => {
    if (!(error instanceof ServiceError)) throw error;
    refuse(error);
};

module.exports = { DeliveryLink };
