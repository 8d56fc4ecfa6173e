// Loaded before Azurite: ends the process when its standard input closes, which happens however the test program ends, and removes
// what it has stored, since a program that is killed or keeps it in a static does not.
const fs = require("node:fs");

function end() {
    try {
        fs.rmSync(process.env.JOBQUEUE_AZURITE_FOLDER, { recursive: true, force: true });
    } finally {
        process.exit(0);
    }
}
process.stdin.on("close", end);
process.stdin.on("error", end);
process.stdin.resume();
