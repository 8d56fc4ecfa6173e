'use strict';
const { Lane } = require('./lane.js');
const { badRequest, sessionCannotBeLocked, sessionLockLost } = require('../errors.js');

/** The sessions of a queue. */
class Sessions {
    constructor(queue) {
        this.queue = queue;
        this.byId = new Map();
        this.waiting = [];
        // The number of sessions that were locked.
        this.turns = 0;
    }

    get(id) {
        let session = this.byId.get(id);
        if (!session) {
            session = new Session(this.queue, id);
            this.byId.set(id, session);
        }
        return session;
    }

    /** Locks a session for a receiver; throws when another holds it. */
    accept(id, receiver) {
        if (id.length > 128) throw badRequest('A session id has at most 128 characters.');
        const session = this.get(id);
        if (session.receiver) throw sessionCannotBeLocked(id);
        session.lock(receiver);
        return session;
    }

    /**
     * Locks the free session with messages that nobody has held for the longest time; returns `undefined` when there is none. The
     * service does not document its choice.
     */
    acceptNext(receiver) {
        let next;
        for (const session of this.byId.values()) {
            if (session.receiver || !session.lane.first()) continue;
            if (!next || session.turn < next.turn) next = session;
        }
        next?.lock(receiver);
        return next;
    }

    /** Calls back when a session may have become free. */
    wait(callback) {
        this.waiting.push(callback);
    }

    stopWaiting(callback) {
        this.waiting = this.waiting.filter((other) => other !== callback);
    }

    changed() {
        for (const callback of [...this.waiting]) callback();
    }

    /** Returns the session that somebody holds; throws when nobody does. */
    held(id) {
        const session = this.byId.get(id);
        if (!session?.receiver) throw sessionLockLost();
        return session;
    }

    /** Returns the ids of the sessions with messages, or of those whose state was set since a time. */
    list(since) {
        const ids = [];
        for (const session of this.byId.values()) {
            const hasMessages = () => this.queue.browse(0, 1, session.id).length > 0;
            const isMeant = since === undefined ? hasMessages() || session.state : session.stateSet >= since;
            if (isMeant) ids.push(session.id);
        }
        return ids;
    }
}

class Session {
    constructor(queue, id) {
        this.queue = queue;
        this.id = id;
        this.state = null;
        this.stateSet = -Infinity;
        this.receiver = undefined;
        this.until = undefined;
        // When it was locked last, counted in locks.
        this.turn = 0;
        this.lane = new SessionLane(queue);
    }

    lock(receiver) {
        this.receiver = receiver;
        this.turn = ++this.queue.sessions.turns;
        this.renew();
    }

    /** Renews the lock of the session and of its messages; returns the new end. */
    renew() {
        this.until = this.queue.clock.now() + this.queue.settings.LockDuration;
        for (const stored of this.queue.locks.of(this)) stored.lock.until = this.until;
        this.queue.deadlines.add(this.until, () => this.expire());
        return this.until;
    }

    expire() {
        const { receiver } = this;
        if (!receiver || this.until > this.queue.clock.now()) return;
        this.unlock(1);
        receiver.refuse(sessionLockLost());
    }

    /** Ends the lock. The service counts a delivery when the lock expired, not when the receiver closed. */
    unlock(counted) {
        this.lane.drop(this.receiver);
        this.receiver = undefined;
        this.until = undefined;
        for (const stored of this.queue.locks.of(this)) this.queue.locks.release(stored, counted);
        this.queue.sessions.changed();
    }

    setState(state) {
        this.state = state;
        this.stateSet = this.queue.clock.now();
    }
}

/** A lane that wakes those who wait for any session. */
class SessionLane extends Lane {
    offer(stored) {
        super.offer(stored);
        this.queue.sessions.changed();
    }
}

module.exports = { Sessions };
