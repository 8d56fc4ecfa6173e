'use strict';
const { types } = require('rhea');
const { Deadlines } = require('./deadlines.js');
const { Duplicates } = require('./duplicates.js');
const { Lane } = require('./lane.js');
const { Locks } = require('./locks.js');
const { Sessions } = require('./sessions.js');
const { StoredMessage } = require('./stored.js');
const { badRequest, entityDisabled, notAllowed, resourceLimitExceeded } = require('../errors.js');
const { plain } = require('../message.js');
const { LARGEST_PROPERTIES } = require('./settlement.js');

/** The most characters of the ids of messages and sessions, and of partition keys. */
const LONGEST_ID = 128;
/** The partitions of a partitioned queue; the number is in the upper 16 bits of a sequence number. */
const PARTITIONS = 4;
const PARTITION = 2 ** 48;
const MEGABYTE = 2 ** 20;

/** A queue, or the dead-letter sub-queue of one. */
class Queue {
    constructor(name, settings, { clock, deadLetters, keepsNumbers = false }) {
        Object.assign(this, { name, settings, clock, deadLetters, keepsNumbers });
        this.created = clock.now();
        this.messages = new Map();
        // The sizes of all messages.
        this.bytes = 0;
        this.lastSequence = 0;
        // The links to clients, both ways.
        this.links = new Set();
        this.duplicates = new Duplicates(clock);
        this.locks = new Locks(this);
        this.sessions = new Sessions(this);
        this.lane = new Lane(this);
        this.deadlines = new Deadlines(clock, (wake) => wake());
    }

    /** Throws when the queue would refuse the message. */
    check(message) {
        if (!this.takesSends) throw entityDisabled(this.name);
        if (this.size + message.size > this.settings.MaxSizeInMegabytes * MEGABYTE) {
            throw resourceLimitExceeded(`The maximum entity size of '${this.name}' has been reached or exceeded.`);
        }
        const key = plain(message.annotations.get('x-opt-partition-key'));
        for (const id of [message.messageId, message.sessionId, key]) {
            if (String(id ?? '').length > LONGEST_ID) throw badRequest(`An identifier has more than ${LONGEST_ID} characters.`);
        }
        if (key !== undefined && message.sessionId !== undefined && key !== message.sessionId) {
            throw badRequest('The partition key of a message differs from its session id.');
        }
        if (message.propertiesSize > LARGEST_PROPERTIES) {
            throw badRequest(`The properties have more than ${LARGEST_PROPERTIES} bytes.`);
        }
        if (this.settings.RequiresSession && typeof message.sessionId !== 'string') {
            throw notAllowed('The SessionId was not set on a message, and it cannot be sent to the entity.');
        }
        if (this.settings.RequiresDuplicateDetection && message.messageId === undefined) {
            throw badRequest('An entity with duplicate detection needs a message id on each message.');
        }
    }

    get takesSends() {
        return !['Disabled', 'SendDisabled'].includes(this.settings.Status);
    }

    /** The size in bytes, with the dead letters. */
    get size() {
        return this.bytes + (this.deadLetters?.bytes ?? 0);
    }

    /** Takes a message in; returns its sequence number, or `undefined` for a duplicate, which is dropped. */
    put(message) {
        this.check(message);
        const { RequiresDuplicateDetection, DuplicateDetectionHistoryTimeWindow } = this.settings;
        if (RequiresDuplicateDetection) {
            if (!this.duplicates.record(message.messageId, DuplicateDetectionHistoryTimeWindow)) return undefined;
        }
        const stored = new StoredMessage(message, this.nextSequence(), this.clock.now());
        this.insert(stored);
        return stored.sequence;
    }

    /** Returns the number of the next message. Partitions have their turn one after the other. */
    nextSequence() {
        const next = ++this.lastSequence;
        return this.settings.EnablePartitioning ? (next % PARTITIONS) * PARTITION + next : next;
    }

    insert(stored) {
        this.messages.set(stored.sequence, stored);
        this.bytes += stored.message.size;
        const at = stored.message.scheduledFor;
        if (at !== undefined && at > this.clock.now()) {
            stored.state = 'scheduled';
            stored.at = at;
            this.deadlines.add(at, () => this.appear(stored));
        } else {
            this.activate(stored);
        }
    }

    appear(stored) {
        if (stored.state !== 'scheduled' || this.messages.get(stored.sequence) !== stored) return;
        if (this.clock.now() < stored.at) return;
        // It is appended to the queue as if it came now, under another number.
        this.messages.delete(stored.sequence);
        stored.sequence = this.nextSequence();
        if (!this.keepsNumbers) stored.originalSequence = stored.sequence;
        this.messages.set(stored.sequence, stored);
        stored.enqueued = stored.at;
        this.activate(stored);
    }

    activate(stored) {
        stored.state = 'active';
        stored.expires ??= stored.enqueued + this.timeToLive(stored.message);
        if (stored.expires < Infinity) this.deadlines.add(stored.expires, () => this.expire(stored));
        this.laneOf(stored).offer(stored);
    }

    timeToLive(message) {
        // Dead letters have no end.
        if (!this.deadLetters) return Infinity;
        return Math.min(message.ttl ?? Infinity, this.settings.DefaultMessageTimeToLive);
    }

    laneOf(stored) {
        return this.settings.RequiresSession ? this.sessions.get(stored.message.sessionId).lane : this.lane;
    }

    /** Removes a message whose time to live is over, unless somebody holds its lock. Returns whether it did. */
    expire(stored) {
        const isHere = this.messages.get(stored.sequence) === stored;
        if (!isHere || stored.lock || this.clock.now() < stored.expires) return false;
        // Deferred messages stay until somebody asks for them.
        if (stored.state === 'deferred') return false;
        this.discard(stored);
        return true;
    }

    discard(stored) {
        if (this.settings.DeadLetteringOnMessageExpiration) {
            this.bury(stored, 'TTLExpiredException', 'The message expired and was dead lettered.');
        } else {
            this.remove(stored);
        }
    }

    remove(stored) {
        this.locks.forget(stored);
        if (this.messages.delete(stored.sequence)) this.bytes -= stored.message.size;
    }

    /** Moves a message to the dead letters. */
    bury(stored, reason, description) {
        this.remove(stored);
        const target = this.deadLetters ?? this;
        const sequence = this.keepsNumbers ? stored.sequence : target.nextSequence();
        const copy = new StoredMessage(stored.message, sequence, stored.enqueued);
        copy.deliveries = stored.deliveries;
        copy.originalSequence = stored.originalSequence;
        copy.added = new Map(stored.added);
        const text = (name, value) => value !== undefined && copy.added.set(name, types.wrap_string(value));
        text('DeadLetterReason', reason);
        text('DeadLetterErrorDescription', description);
        target.messages.set(copy.sequence, copy);
        target.bytes += copy.message.size;
        target.activate(copy);
    }

    /** Gives an unlocked message back, after `counted` deliveries more. */
    giveBack(stored, counted = 1) {
        stored.deliveries += counted;
        if (stored.deliveries >= this.settings.MaxDeliveryCount) {
            const text = `Message could not be consumed after ${stored.deliveries} delivery attempts.`;
            this.bury(stored, 'MaxDeliveryCountExceeded', text);
        } else if (!this.expire(stored) && stored.state === 'active') {
            this.laneOf(stored).offer(stored);
        }
    }

    /** Returns the messages from a sequence number on; of a partitioned queue those of one partition, as if that had answered first. */
    browse(from, count, sessionId) {
        const found = [];
        const partition = (stored) => Math.floor(stored.sequence / PARTITION);
        const all = [...this.messages.values()].sort((one, other) => one.sequence - other.sequence);
        const last = Math.max(...all.map(partition));
        for (const stored of all) {
            if (found.length >= count) break;
            if (partition(stored) !== last) continue;
            const isMeant = sessionId === undefined || stored.message.sessionId === sessionId;
            if (stored.sequence >= from && isMeant) found.push(stored);
        }
        return found;
    }

    /** Returns how many messages are in each state. */
    counts() {
        const counts = { active: 0, scheduled: 0, deferred: 0 };
        for (const stored of this.messages.values()) counts[stored.state] += 1;
        return { ...counts, deadLetters: this.deadLetters?.messages.size ?? 0 };
    }

    /** Ends the queue: all its links are detached. */
    close(error) {
        this.deadlines.stop();
        for (const link of [...this.links]) link.refuse(error);
        this.messages.clear();
        this.bytes = 0;
    }
}

module.exports = { Queue };
