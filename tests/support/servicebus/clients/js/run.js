'use strict';
// Checks the emulator with the stock client for JavaScript: run.js JSON [MODULE [PART OF A NAME]].
// NODE_EXTRA_CA_CERTS names the certificate.

const { Emulator } = require('./emulator.js');

const MODULES = ['deliveries', 'times', 'sessions', 'settings', 'transactions', 'links', 'faults'];

async function main() {
    const [ports, module = '', only = ''] = process.argv.slice(2);
    const emulator = new Emulator(JSON.parse(ports));
    const checks = MODULES.filter((name) => name.includes(module)).flatMap((name) => Object.entries(require(`./${name}.js`)));
    let failed = 0;
    for (const [name, check] of checks.filter(([name]) => name.includes(only))) {
        const begun = Date.now();
        try {
            await check(emulator);
            console.log(`ok ${name} ${(Date.now() - begun) / 1000} s`);
        } catch (error) {
            failed += 1;
            console.log(`FAILED ${name}\n`, error);
        }
        await emulator.control('DELETE', 'faults');
    }
    process.exit(failed > 0 ? 1 : 0);
}

main();
