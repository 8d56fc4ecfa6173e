#!/usr/bin/env node
'use strict';
// An emulator in lock step with a simulation: it has no sockets and no time of its own. Connections, requests and the time come by
// standard input; the answers leave by standard output when the simulation asks for them, and nothing happens in between.

const { Frames, frame } = require('./src/lockstep/frames.js');
const { Stage } = require('./src/lockstep/stage.js');

const stage = new Stage((kind, ...parts) => process.stdout.write(frame(kind, ...parts)));
const frames = new Frames();
let work = Promise.resolve();

process.stdin.on('data', (bytes) => {
    for (const { kind, body } of frames.read(bytes)) work = work.then(() => stage.play(kind, body));
    work.catch((error) => {
        console.error(error);
        process.exit(1);
    });
});
process.stdin.on('close', () => process.exit(0));
process.stdin.on('error', () => process.exit(0));
