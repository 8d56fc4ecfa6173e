'use strict';
const assert = require('node:assert/strict');
const { code, none, one } = require('./emulator.js');

module.exports = {
    async 'a busy service refuses'(emulator) {
        const queue = await emulator.queue();
        await emulator.plant('send', 'busy', { entity: queue });
        await emulator.opened(queue, async ({ sender }) => {
            await assert.rejects(sender.sendMessages({ body: 1 }), code('ServiceBusy'));
            await sender.sendMessages({ body: 1 });
        });
    },

    async 'a link that was detached settles over management'(emulator) {
        const queue = await emulator.queue();
        await emulator.opened(queue, async ({ sender, receiver }) => {
            await sender.sendMessages({ body: 1 });
            const message = await one(receiver);
            await emulator.detach(queue);
            await receiver.completeMessage(message);
            assert.deepEqual((await emulator.shown(queue)).messages, []);
        });
    },

    async 'an ended session or connection is reopened'(emulator) {
        for (const action of ['end-session', 'abort']) {
            const queue = await emulator.queue();
            const check = async ({ sender, receiver }) => {
                await none(receiver);
                await emulator.plant('send', action, { entity: queue, performed: false });
                await sender.sendMessages({ body: action });
                assert.equal((await one(receiver)).body, action);
            };
            await emulator.opened(queue, check, { retries: 3 });
        }
    },

    async 'an answer that was dropped is a timeout'(emulator) {
        const queue = await emulator.queue();
        await emulator.plant('complete', 'drop', { entity: queue });
        await emulator.opened(queue, async ({ sender, receiver }) => {
            await sender.sendMessages({ body: 1 });
            await assert.rejects(receiver.completeMessage(await one(receiver)), code('ServiceTimeout'));
            assert.deepEqual((await emulator.shown(queue)).messages, []);
        });
    },
};
