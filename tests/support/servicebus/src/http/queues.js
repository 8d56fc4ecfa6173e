'use strict';
// The queues of the emulator, as the control endpoint makes and shows them.

const settings = require('../store/settings.js');
const { plain } = require('../message.js');

const NO_LIMITS = { limits: false };

class Queues {
    constructor(namespace) {
        this.namespace = namespace;
    }

    /** Makes a queue or changes its settings, without the service's limits. */
    put(name, values) {
        const { namespace } = this;
        const isThere = namespace.queues.has(name.toLowerCase());
        return shown(isThere ? namespace.update(name, values, NO_LIMITS) : namespace.create(name, values, NO_LIMITS));
    }

    list() {
        return [...this.namespace.queues.values()].map(summary);
    }

    get(name) {
        return shown(this.namespace.find(name));
    }

    remove(name) {
        this.namespace.remove(name);
    }
}

function summary(queue) {
    return { name: queue.name, settings: Object.fromEntries(settings.texts(queue.settings)), counts: queue.counts() };
}

function shown(queue) {
    const messages = [...queue.messages.values()].map((stored) => ({
        sequence: stored.sequence,
        id: stored.message.messageId,
        session: stored.message.sessionId,
        state: stored.state,
        deliveries: stored.deliveries,
        lockedUntil: stored.lock?.until,
        enqueued: stored.enqueued,
        scheduledFor: stored.at,
        properties: Object.fromEntries([...stored.added].map(([name, value]) => [name, plain(value)])),
    }));
    return { ...summary(queue), messages };
}

module.exports = { Queues };
