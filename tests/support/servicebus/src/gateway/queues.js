'use strict';
// The queues of the control endpoint, made and read in the namespace.

const atom = require('./atom.js');
const { ServiceError, entityNotFound } = require('../errors.js');

const VERSION = 'api-version=2021-05';
const DEAD_LETTERS = '/$deadletterqueue';
const XML = 'application/atom+xml;type=entry;charset=utf-8';
const { STATES } = require('./peeks.js');

class Queues {
    constructor({ target, names, web, peeks }) {
        Object.assign(this, { target, names, web, peeks });
    }

    /** Makes a queue, or changes its settings; values beyond the service's limits are moved to the limits. */
    async put(name, values) {
        const known = await this.entry(name);
        if (known === undefined) await this.ask('PUT', name, values);
        else await this.ask('PUT', name, { ...atom.settings(known), ...values }, { 'if-match': '*' });
        return this.get(name);
    }

    async list() {
        const { ours } = await this.web.queues({});
        const names = ours.map(({ name }) => name.slice(this.names.prefix.length));
        return Promise.all(names.map((name) => this.summary(name)));
    }

    async get(name) {
        if (!name.toLowerCase().endsWith(DEAD_LETTERS)) return this.summary(name);
        const messages = await this.messages(name);
        return { name, settings: {}, counts: counted(messages), messages };
    }

    async remove(name) {
        await this.ask('DELETE', name);
    }

    /** Deletes all queues that were made through this gateway. */
    async clear() {
        const { ours } = await this.web.queues({});
        for (const { name } of ours) await this.target.ask('DELETE', `/${encodeURI(name)}?${VERSION}`);
    }

    async summary(name) {
        const entry = await this.entry(name);
        if (entry === undefined) throw entityNotFound(name);
        // By looking at the messages: the counts of the management API come late.
        const [messages, letters] = [await this.messages(name), await this.messages(`${name}/$DeadLetterQueue`)];
        const counts = { ...counted(messages), deadLetters: letters.length };
        return { name, settings: atom.settings(entry), counts, messages };
    }

    messages(name) {
        return this.peeks.all(this.names.toNamespace(name));
    }

    async entry(name) {
        const { status, text } = await this.target.ask('GET', `${this.pathOf(name)}?${VERSION}`);
        // The service answers an unknown name with an empty feed.
        return status === 200 && text.includes('<QueueDescription') ? text : undefined;
    }

    async ask(method, name, settings, headers = {}) {
        const body = settings && atom.description(settings);
        const options = { headers: { 'content-type': XML, ...headers }, body };
        const { status, text } = await this.target.ask(method, `${this.pathOf(name)}?${VERSION}`, options);
        if (status >= 300) throw new ServiceError('amqp:internal-error', this.names.toClient(text), status);
        return text;
    }

    pathOf(name) {
        return `/${encodeURI(this.names.toNamespace(name))}`;
    }
}

function counted(messages) {
    return Object.fromEntries(STATES.map((state) => [state, messages.filter((message) => message.state === state).length]));
}

module.exports = { Queues };
