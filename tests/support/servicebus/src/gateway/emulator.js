'use strict';
// An emulator as the namespace behind the gateway, a process of its own that is spoken to over TLS.

const { spawn } = require('node:child_process');
const path = require('node:path');
const { once } = require('node:events');
const { createInterface } = require('node:readline');

const PROGRAM = path.join(__dirname, '..', '..', 'main.js');
const FLAGS = {
    cert: '--cert',
    key: '--key',
    sku: '--sku',
    checksTokens: '--checks-tokens',
    linkIdleTimeout: '--link-idle-timeout',
    handleMax: '--handle-max',
    channelMax: '--channel-max',
    locksEndWithLinks: '--locks-end-with-links',
    countsDroppedLocks: '--counts-dropped-locks',
    sessionSearch: '--session-search',
    sessionOvertime: '--session-overtime',
};

/** Starts it with the gateway's certificate; resolves to its connection string, its control endpoint and a function that ends it. */
async function start(options) {
    const given = Object.entries(FLAGS).filter(([name]) => options[name] !== undefined);
    const flags = given.flatMap(([name, flag]) => [flag, String(options[name])]);
    // Its end of standard input closes with this process.
    const child = spawn(process.execPath, [PROGRAM, ...flags], { stdio: ['pipe', 'pipe', 'inherit'] });
    const [line] = await Promise.race([once(createInterface(child.stdout), 'line'), once(child, 'exit').then(failed)]);
    const { tlsPort, controlPort, connectionString } = JSON.parse(line);
    const keys = connectionString.slice(connectionString.indexOf(';') + 1).replace('UseDevelopmentEmulator=true', '');
    return {
        connectionString: `Endpoint=sb://localhost:${tlsPort};${keys}`,
        control: `http://127.0.0.1:${controlPort}`,
        close: () => child.kill('SIGTERM'),
    };
}

function failed() {
    throw new Error('the emulator behind the gateway does not start');
}

module.exports = { start };
