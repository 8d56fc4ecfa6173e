'use strict';
const { Queue } = require('./queue.js');
const settings = require('./settings.js');
const { entityDisabled, entityNotFound, notAllowed, ServiceError } = require('../errors.js');

const DEAD_LETTERS = '/$deadletterqueue';
const MANAGEMENT = '/$management';

/** All queues by name. Names are not case-sensitive. */
class Namespace {
    constructor(clock, { autoCreate = false, sku, keepsNumbers = false } = {}) {
        this.clock = clock;
        this.autoCreate = autoCreate;
        this.isBasic = sku === 'Basic';
        this.keepsNumbers = keepsNumbers;
        this.queues = new Map();
    }

    /** Returns the queue or dead-letter sub-queue of an address, which may be that of its management; throws when there is none. */
    find(address) {
        const isManagement = address.toLowerCase().endsWith(MANAGEMENT);
        const name = isManagement ? address.slice(0, -MANAGEMENT.length) : address;
        const key = name.toLowerCase();
        const main = key.endsWith(DEAD_LETTERS) ? name.slice(0, -DEAD_LETTERS.length) : name;
        const queue = this.main(main);
        return key === main.toLowerCase() ? queue : queue.deadLetters;
    }

    main(name) {
        const queue = this.queues.get(name.toLowerCase());
        if (queue) return queue;
        const isQueue = name !== '' && !name.includes('$');
        if (this.autoCreate && isQueue) return this.create(name, {});
        throw entityNotFound(name);
    }

    /** Makes a queue with the given settings; throws when it exists. */
    create(name, values, limits) {
        const key = name.toLowerCase();
        if (this.queues.has(key)) {
            const text = `SubCode=40900. Conflict. The queue '${name}' exists already.`;
            throw new ServiceError('com.microsoft:entity-already-exists', text, 409);
        }
        const wanted = settings.changed(settings.defaults(), values, limits);
        if (this.isBasic && (wanted.RequiresSession || wanted.RequiresDuplicateDetection)) {
            throw notAllowed('SubCode=40000. The Basic tier has neither sessions nor duplicate detection.');
        }
        const { clock, keepsNumbers } = this;
        const deadLetters = new Queue(`${name}/$DeadLetterQueue`, { ...wanted, ...OF_DEAD_LETTERS }, { clock });
        const queue = new Queue(name, wanted, { clock, deadLetters, keepsNumbers });
        this.queues.set(key, queue);
        return queue;
    }

    /** Changes the settings of a queue. */
    update(name, values, limits) {
        const queue = this.main(name);
        const wanted = settings.changed(queue.settings, values, limits);
        const fixed = settings.fixedDifference(queue.settings, wanted);
        if (fixed) throw new ServiceError('amqp:not-allowed', `SubCode=40000. ${fixed} cannot be changed.`, 400);
        queue.settings = wanted;
        queue.deadLetters.settings = { ...wanted, ...OF_DEAD_LETTERS };
        if (!queue.takesSends) {
            for (const link of [...queue.links]) if (link.sends) link.refuse(entityDisabled(name));
        }
        return queue;
    }

    /** Removes a queue; its links are detached. */
    remove(name) {
        const queue = this.queues.get(name.toLowerCase());
        if (!queue) throw entityNotFound(name);
        this.queues.delete(name.toLowerCase());
        queue.close(entityNotFound(name));
        queue.deadLetters.close(entityNotFound(name));
    }
}

/** What differs between a queue and its dead-letter sub-queue. */
const OF_DEAD_LETTERS = {
    DefaultMessageTimeToLive: Infinity,
    MaxDeliveryCount: Infinity,
    RequiresDuplicateDetection: false,
    RequiresSession: false,
};

module.exports = { Namespace };
