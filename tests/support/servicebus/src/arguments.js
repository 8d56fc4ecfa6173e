'use strict';
const { parseArgs } = require('node:util');

/** Returns the options of the command line, `--tls-port 0` as `tlsPort`, with the types that their usual values have. */
function read(usual) {
    const flag = (name) => name.replace(/[A-Z]/g, (letter) => `-${letter.toLowerCase()}`);
    const names = Object.keys(usual);
    const options = Object.fromEntries(names.map((name) => [flag(name), { type: 'string' }]));
    const { values } = parseArgs({ options });
    const given = names.filter((name) => values[flag(name)] !== undefined);
    return Object.fromEntries(given.map((name) => [name, typed(values[flag(name)], usual[name])]));
}

function typed(text, usual) {
    if (typeof usual === 'number') return Number(text);
    return typeof usual === 'boolean' ? text === 'true' : text;
}

/** Calls `end` once, when standard input closes or on SIGTERM: a test program that is killed leaves nothing behind. */
function atEnd(end) {
    let isOver = false;
    const once = () => {
        if (!isOver) end();
        isOver = true;
    };
    process.on('SIGTERM', once);
    process.stdin.on('close', once);
    process.stdin.on('error', once);
    process.stdin.resume();
}

/** Prints where the program listens, and the connection string for clients. */
function announce(ports, { keyName, sharedKey, host }) {
    const connectionString =
        `Endpoint=sb://${host}:${ports.port};SharedAccessKeyName=${keyName};SharedAccessKey=${sharedKey};` +
        'UseDevelopmentEmulator=true';
    console.log(JSON.stringify({ ...ports, connectionString }));
}

module.exports = { announce, atEnd, read };
