'use strict';
const assert = require('node:assert/strict');
const { code, none, one } = require('./emulator.js');

module.exports = {
    async 'scheduled messages are seen, cancelled, delivered'(emulator) {
        const queue = await emulator.queue();
        const { now } = await emulator.control('GET', 'clock');
        const when = new Date(now + 60_000);
        await emulator.opened(queue, async ({ sender, receiver }) => {
            const numbers = await sender.scheduleMessages([{ body: 'a', messageId: 'a' }, { body: 'b', messageId: 'b' }], when);
            assert.deepEqual(numbers.map(Number), [1, 2]);
            await none(receiver);
            const peeked = await receiver.peekMessages(5);
            assert.deepEqual(peeked.map(({ body, state }) => [body, state]), [['a', 'scheduled'], ['b', 'scheduled']]);
            await sender.cancelScheduledMessages(numbers[0]);
            await assert.rejects(sender.cancelScheduledMessages(numbers[0]), code('MessageNotFound'));
            await emulator.advance(61);
            assert.equal((await one(receiver)).body, 'b');
        });
    },

    async 'duplicates are dropped'(emulator) {
        const queue = await emulator.queue({ RequiresDuplicateDetection: true });
        await emulator.opened(queue, async ({ sender, receiver }) => {
            for (const body of ['first', 'second']) await sender.sendMessages({ body, messageId: 'same' });
            assert.equal((await one(receiver)).body, 'first');
            await none(receiver);
        });
    },

    async 'expired messages become dead letters'(emulator) {
        const queue = await emulator.queue({ DeadLetteringOnMessageExpiration: true });
        await emulator.opened(queue, async ({ client, sender }) => {
            await sender.sendMessages({ body: 'x', timeToLive: 30_000 });
            await emulator.advance(31);
            const dead = client.createReceiver(queue, { subQueueType: 'deadLetter' });
            assert.equal((await one(dead)).deadLetterReason, 'TTLExpiredException');
        });
    },
};
