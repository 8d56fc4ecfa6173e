'use strict';
// Puts the parts together.

const { readFileSync } = require('node:fs');
const { Broker } = require('./amqp/broker.js');
const { Tokens } = require('./amqp/claims.js');
const { Clock } = require('./clock.js');
const { Control } = require('./http/control.js');
const { frames } = require('./amqp/hooks.js');
const { Faults } = require('./faults.js');
const { Listeners } = require('./listeners.js');
const { Management } = require('./http/management.js');
const { Namespace } = require('./store/namespace.js');
const { Queues } = require('./http/queues.js');

const DEFAULTS = {
    host: '127.0.0.1',
    port: 0,
    tlsPort: 0,
    controlPort: 0,
    cert: undefined,
    key: undefined,
    keyName: 'RootManageSharedAccessKey',
    sharedKey: 'ZW11bGF0b3Ita2V5LW5vdC1hLXNlY3JldA==',
    checksTokens: true,
    autoCreate: false,
    name: 'emulator',
    sku: 'Standard',
    maxMessageSize: 262144,
    maxFrameSize: 65536,
    idleTimeout: 240_000,
    linkIdleTimeout: 0,
    handleMax: 255,
    channelMax: 4999,
    locksEndWithLinks: false,
    countsDroppedLocks: true,
    keepsNumbers: false,
    sessionSearch: 0,
    sessionOvertime: 0,
    virtualTime: false,
};

/** Returns the parts of an emulator without sockets. */
function assemble(options, clock = new Clock()) {
    const faults = new Faults();
    const namespace = new Namespace(clock, options);
    const { keyName, sharedKey: key, checksTokens: checks, virtualTime } = options;
    const tokens = new Tokens({ keyName, key, checks, now: virtualTime ? () => clock.now() : undefined });
    const broker = new Broker({ namespace, clock, faults, tokens, options });
    const management = new Management({ namespace, faults, tokens, clock, options });
    return { clock, faults, namespace, broker, management };
}

/** Starts an emulator; resolves to its ports and a function that ends it. */
async function start(given = {}) {
    const options = { ...DEFAULTS, ...given };
    const { clock, faults, namespace, broker, management } = assemble(options);
    const control = new Control({ queues: new Queues(namespace), faults, clock, broker, frames });
    const listeners = new Listeners();
    const { host } = options;
    const shared = { host, broker, management, faults };
    const ports = { port: await listeners.shared({ ...shared, port: options.port }) };
    if (options.cert) {
        const certificate = { cert: readFileSync(options.cert), key: readFileSync(options.key) };
        ports.tlsPort = await listeners.shared({ ...shared, port: options.tlsPort, certificate });
    }
    const serve = (request, response) => control.serve(request, response);
    ports.controlPort = await listeners.web({ host, port: options.controlPort, serve });
    return { ports, options, close: () => listeners.close() };
}

module.exports = { DEFAULTS, assemble, start };
