// Loaded before Azurite: ends the process when its standard input closes, which happens however the test program ends.
process.stdin.on("close", () => process.exit(0));
process.stdin.on("error", () => process.exit(0));
process.stdin.resume();
