'use strict';
// Puts the parts together.

const { randomBytes } = require('node:crypto');
const { readFileSync } = require('node:fs');
const { MovedTime, TrueTime } = require('./clock.js');
const { Connection } = require('./connection.js');
const emulator = require('./emulator.js');
const { Exchange } = require('./tokens.js');
const { Names } = require('./names.js');
const { Peeks } = require('./peeks.js');
const { Queues } = require('./queues.js');
const { Target } = require('./target.js');
const { Web } = require('./web.js');
const { Control } = require('../http/control.js');
const { Faults } = require('../faults.js');
const { Listeners } = require('../listeners.js');

const DEFAULTS = {
    host: '127.0.0.1',
    port: 0,
    tlsPort: 0,
    controlPort: 0,
    cert: undefined,
    key: undefined,
    keyName: 'RootManageSharedAccessKey',
    checksTokens: true,
    // Those of an emulator behind the gateway.
    sku: undefined,
    linkIdleTimeout: undefined,
    handleMax: undefined,
    locksEndWithLinks: undefined,
    countsDroppedLocks: undefined,
    sessionSearch: undefined,
    sessionOvertime: undefined,
};
const LONGEST_END = 5000;

/** What the environment says: the namespace, the control endpoint of its clock if that can be moved, and a distance in milliseconds. */
const ENVIRONMENT = {
    namespace: 'JOBQUEUE_TEST_SERVICEBUS',
    clock: 'JOBQUEUE_TEST_SERVICEBUS_CLOCK',
    distance: 'JOBQUEUE_TEST_SERVICEBUS_DISTANCE',
};
const setting = (name) => process.env[ENVIRONMENT[name]] || undefined;

/** A gateway: what the control endpoint strikes at, and what its connections share. */
class Gateway {
    constructor({ target, distance, options }) {
        this.target = target;
        this.names = new Names();
        this.faults = new Faults();
        this.tokens = new Exchange(options, this.names, target);
        this.frames = { transfers: 0, flows: 0, drains: 0, dispositions: 0, detaches: 0 };
        this.connections = new Set();
        this.opened = 0;
        this.later = distance > 0 ? (action) => setTimeout(action, distance) : (action) => action();
    }

    /** Serves AMQP on a socket. */
    accept(socket) {
        this.connections.add(new Connection(this, socket, `connection-${++this.opened}`));
    }

    /** Returns the attached links of an entity, or all. */
    links(entity) {
        const all = [...this.connections].flatMap(({ links }) => [...links]);
        return entity === undefined || entity === null ? all : all.filter((link) => link.address === entity.toLowerCase());
    }

    /** Resolves when the namespace knows of what was struck. */
    settled(action, links) {
        const of = { detach: (link) => link, 'end-session': (link) => link.session }[action] ?? ((link) => link.connection);
        if (action === 'freeze') return undefined;
        const ended = Promise.all(links.map((link) => of(link).ended));
        return Promise.race([ended, new Promise((resolve) => setTimeout(resolve, LONGEST_END).unref())]);
    }
}

/** Starts a gateway; resolves to its ports and a function that ends it and deletes its queues. */
async function start(given = {}) {
    const options = { ...DEFAULTS, sharedKey: randomBytes(32).toString('base64'), ...given };
    const isEmulator = setting('namespace') === 'emulator';
    const certificate = options.cert && { cert: readFileSync(options.cert), key: readFileSync(options.key) };
    const behind = isEmulator ? await emulator.start(options) : { connectionString: setting('namespace') ?? '' };
    const target = new Target(behind.connectionString, isEmulator ? certificate?.cert : undefined);
    const gateway = new Gateway({ target, distance: Number(setting('distance') ?? 0), options });
    const control = setting('clock') ?? behind.control;
    const clock = control && control !== 'none' ? new MovedTime(control) : new TrueTime();
    const web = new Web(gateway);
    const { names, faults, frames } = gateway;
    const queues = new Queues({ target, names, web, peeks: new Peeks(target) });
    const listeners = new Listeners();
    const { host } = options;
    const shared = { host, broker: gateway, management: web, faults };
    const ports = { port: await listeners.shared({ ...shared, port: options.port }) };
    if (certificate) ports.tlsPort = await listeners.shared({ ...shared, port: options.tlsPort, certificate });
    const endpoint = new Control({ queues, faults, clock, broker: gateway, frames });
    const serve = (request, response) => endpoint.serve(request, response);
    ports.controlPort = await listeners.web({ host, port: options.controlPort, serve });
    const close = async () => {
        // The queues of an emulator end with it.
        if (!isEmulator) await queues.clear().catch((error) => console.error(`queues are left: ${error.message}`));
        await Promise.race([listeners.close(), new Promise((resolve) => setTimeout(resolve, LONGEST_END).unref())]);
        behind.close?.();
    };
    return { ports, options, close };
}

module.exports = { DEFAULTS, start };
