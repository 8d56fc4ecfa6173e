// Runs PostgreSQL: `node -e SCRIPT PROGRAM FOLDER ARGUMENT…`. It ends with its standard input, which closes however the test program ends,
// and then removes the folder with the data, since a program that is killed or keeps the server in a static does not.
const { spawn } = require("node:child_process");
const fs = require("node:fs");

const [program, folder, ...rest] = process.argv.slice(1);
const server = spawn(program, rest, { stdio: ["ignore", "inherit", "inherit"] });
console.log(`server process ${server.pid}`);

function end() {
    // The immediate end, which needs no recovery to be thrown away.
    server.kill("SIGQUIT");
}
process.stdin.on("close", end);
process.stdin.on("error", end);
process.stdin.resume();
server.on("exit", () => {
    if (process.stdin.destroyed || process.stdin.readableEnded) {
        try {
            fs.rmSync(folder, { recursive: true, force: true });
        } catch {
            // The test program removes it too.
        }
    }
    process.exit(0);
});
