'use strict';
// The control endpoint for tests: queues without the service's limits, faults, the clock, and what has happened.

const { readBody } = require('./body.js');
const { strike, STRIKES } = require('../amqp/strikes.js');
const { ServiceError, badRequest } = require('../errors.js');

const LONGEST_WAIT = 60_000;

class Control {
    /** Takes what the emulator and the gateway have each in their way, and the counts of frames. */
    constructor({ queues, faults, clock, broker, frames }) {
        Object.assign(this, { queues, faults, clock, broker, frames });
    }

    async serve(request, response) {
        let [status, answer] = [200, {}];
        try {
            const text = (await readBody(request)).toString();
            const body = text === '' ? {} : parse(text);
            const url = new URL(request.url, 'http://control');
            const [, kind, ...rest] = url.pathname.split('/').map(decodeURIComponent);
            const route = ROUTES[`${request.method} ${kind}`];
            if (!route) throw new ServiceError('amqp:not-found', `No such call: ${request.method} ${url.pathname}`, 404);
            answer = (await route(this, { body, name: rest[0], action: rest[1], query: url.searchParams })) ?? {};
        } catch (error) {
            if (!(error instanceof ServiceError)) console.error(error);
            status = error.status ?? 500;
            answer = { condition: error.condition, error: error.message };
        }
        const text = JSON.stringify(answer);
        response.writeHead(status, { 'content-type': 'application/json', 'content-length': Buffer.byteLength(text) });
        response.end(text);
    }
}

const ROUTES = {
    'PUT queues': ({ queues }, { name, body }) => queues.put(name, body),
    'GET queues': ({ queues }, { name }) => (name === undefined ? queues.list() : queues.get(name)),
    'DELETE queues': ({ queues }, { name }) => queues.remove(name),

    'POST faults': async ({ faults }, { body, name, action }) => {
        if (name === undefined) return faults.plant(body);
        if (action !== 'release') throw badRequest('A fault can be released only.');
        const fault = faults.get(name);
        fault.release();
        return fault;
    },
    'GET faults': async ({ faults }, { name, query }) => {
        if (name === undefined) return [...faults.planted.values()];
        const fault = faults.get(name);
        const hits = Number(query.get('hits') ?? 0);
        await faults.until(() => fault.hits >= hits, wait(query));
        return fault;
    },
    'DELETE faults': ({ faults }, { name }) => (name === undefined ? faults.clear() : faults.remove(name)),

    'GET calls': async ({ faults }, { query }) => {
        const from = Number(query.get('from') ?? 0);
        const isMeant = ({ number, operation, entity }) =>
            number > from &&
            operation === (query.get('operation') ?? operation) &&
            (entity ?? '').toLowerCase() === (query.get('entity') ?? entity ?? '').toLowerCase();
        const found = () => faults.journal.filter(isMeant);
        await faults.until(() => found().length >= Number(query.get('count') ?? 0), wait(query));
        return found();
    },

    'POST strike': async ({ broker }, { body }) => {
        if (!STRIKES.includes(body.action)) throw badRequest(`An action is one of ${STRIKES.join(', ')}.`);
        const links = broker.links(body.entity);
        const key = { detach: (link) => link, 'end-session': (link) => link.session }[body.action];
        const struck = new Map(links.map((link) => [key ? key(link) : link.connection, link]));
        for (const link of struck.values()) strike(body.action, link, body);
        await broker.settled?.(body.action, [...struck.values()]);
        return { struck: struck.size };
    },

    'GET links': ({ broker }, { query }) =>
        broker.links(query.get('entity') ?? undefined).map((link) => ({
            entity: link.address,
            role: link.is_sender() ? 'receiver' : 'sender',
            credit: link.credit,
            connection: link.connection.options.id,
        })),

    'GET frames': ({ frames }) => frames,

    'POST clock': async ({ clock }, { body }) => {
        if (body.stop) await clock.stop();
        await clock.advance(Number(body.advance ?? 0));
        return { now: clock.now() };
    },
    'GET clock': ({ clock }) => ({ now: clock.now() }),
};

function wait(query) {
    return Math.min(Number(query.get('wait') ?? 0), LONGEST_WAIT);
}

function parse(text) {
    try {
        return JSON.parse(text);
    } catch (error) {
        throw badRequest(error.message);
    }
}

module.exports = { Control };
