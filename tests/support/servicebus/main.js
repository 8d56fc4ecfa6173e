#!/usr/bin/env node
'use strict';
// Starts the emulator, prints its ports as one line of JSON, and ends when standard input closes or on SIGTERM: a test
// program that is killed leaves nothing behind.

const { parseArgs } = require('node:util');
const { DEFAULTS, start } = require('./src/emulator.js');

/** `--tls-port 0` sets `tlsPort`: each option of the emulator by its name. */
function read() {
    const flag = (name) => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    const names = Object.keys(DEFAULTS);
    const options = Object.fromEntries(names.map((name) => [flag(name), { type: 'string' }]));
    const { values } = parseArgs({ options });
    const given = names.filter((name) => values[flag(name)] !== undefined);
    return Object.fromEntries(given.map((name) => [name, typed(values[flag(name)], DEFAULTS[name])]));
}

function typed(text, usual) {
    if (typeof usual === 'number') return Number(text);
    return typeof usual === 'boolean' ? text === 'true' : text;
}

async function main() {
    const end = () => process.exit(0);
    process.on('SIGTERM', end);
    process.stdin.on('close', end);
    process.stdin.on('error', end);
    process.stdin.resume();
    const { ports, options } = await start(read());
    const { keyName, sharedKey, host } = options;
    const connectionString =
        `Endpoint=sb://${host}:${ports.port};SharedAccessKeyName=${keyName};SharedAccessKey=${sharedKey};` +
        'UseDevelopmentEmulator=true';
    console.log(JSON.stringify({ ...ports, connectionString }));
}

main().catch((error) => {
    console.error(error.message);
    process.exit(1);
});
