#!/usr/bin/env node
'use strict';
// Starts the gateway before a namespace, prints its ports as one line of JSON, and ends when standard input closes or on SIGTERM,
// after it has deleted the queues that were made through it.

const { announce, atEnd, read } = require('./src/arguments.js');
const { DEFAULTS, start } = require('./src/gateway/index.js');

async function main() {
    const starting = start(read(DEFAULTS));
    atEnd(async () => {
        const running = await starting.catch(() => undefined);
        await running?.close();
        process.exit(0);
    });
    const { ports, options } = await starting;
    announce(ports, options);
}

main().catch((error) => {
    console.error(error.message);
    process.exit(1);
});
