// Runs PostgreSQL: `node -e SCRIPT PROGRAM FOLDER ARGUMENT…`. It ends with its standard input, which closes however the test program ends,
// and then removes the folder with the data, since a program that is killed or keeps the server in a static does not.
// With RESTART in its environment it starts the program again when that ends by itself.
const { spawn } = require("node:child_process");
const fs = require("node:fs");

const [program, folder, ...rest] = process.argv.slice(1);
let server;

function end() {
    // The immediate end, which needs no recovery to be thrown away.
    server.kill("SIGQUIT");
}
process.stdin.on("close", end);
process.stdin.on("error", end);
process.stdin.resume();

function start() {
    server = spawn(program, rest, { stdio: ["ignore", "inherit", "inherit"] });
    console.log(`server process ${server.pid}`);
    server.on("exit", () => {
        const isClosed = process.stdin.destroyed || process.stdin.readableEnded;
        if (!isClosed && process.env.RESTART) {
            start();
            return;
        }
        if (isClosed) {
            try {
                fs.rmSync(folder, { recursive: true, force: true });
            } catch {
                // The test program removes it too.
            }
        }
        process.exit(0);
    });
}
start();
