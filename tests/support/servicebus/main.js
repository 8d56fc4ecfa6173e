#!/usr/bin/env node
'use strict';
// Starts the emulator, prints its ports as one line of JSON, and ends when standard input closes or on SIGTERM.

const { announce, atEnd, read } = require('./src/arguments.js');
const { DEFAULTS, start } = require('./src/emulator.js');

async function main() {
    atEnd(() => process.exit(0));
    const { ports, options } = await start(read(DEFAULTS));
    announce(ports, options);
}

main().catch((error) => {
    console.error(error.message);
    process.exit(1);
});
