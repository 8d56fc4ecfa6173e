'use strict';
const assert = require('node:assert/strict');
const { code, none, one } = require('./emulator.js');

module.exports = {
    async 'a message arrives as it was sent'(emulator) {
        const queue = await emulator.queue();
        await emulator.opened(queue, async ({ sender, receiver }) => {
            await sender.sendMessages({
                body: { a: 1 },
                messageId: 'm',
                subject: 's',
                contentType: 'application/json',
                correlationId: 'c',
                timeToLive: 300_000,
                applicationProperties: { text: 'v', number: 7, flag: true },
            });
            const message = await one(receiver);
            assert.deepEqual(message.body, { a: 1 });
            assert.deepEqual(message.applicationProperties, { text: 'v', number: 7, flag: true });
            assert.deepEqual([message.messageId, message.subject, message.correlationId], ['m', 's', 'c']);
            assert.deepEqual([message.deliveryCount, message.timeToLive, message.state], [0, 300_000, 'active']);
            assert.equal(message.sequenceNumber.toNumber(), 1);
            const until = await receiver.renewMessageLock(message);
            assert.ok(until > message.enqueuedTimeUtc);
            await receiver.completeMessage(message);
            assert.deepEqual((await emulator.shown(queue)).messages, []);
        });
    },

    async 'abandoning, deferring and dead-lettering keep properties'(emulator) {
        const queue = await emulator.queue();
        await emulator.opened(queue, async ({ client, sender, receiver }) => {
            await sender.sendMessages({ body: 'x' });
            await receiver.abandonMessage(await one(receiver), { step: 1 });
            let message = await one(receiver);
            assert.deepEqual([message.deliveryCount, message.applicationProperties], [1, { step: 1 }]);
            await receiver.deferMessage(message, { step: 2 });
            await none(receiver);
            [message] = await receiver.receiveDeferredMessages(message.sequenceNumber);
            assert.equal(message.applicationProperties.step, 2);
            const options = { deadLetterReason: 'bad', deadLetterErrorDescription: 'very', step: 3 };
            await receiver.deadLetterMessage(message, options);
            const dead = client.createReceiver(queue, { subQueueType: 'deadLetter' });
            message = await one(dead);
            assert.deepEqual([message.deadLetterReason, message.deadLetterErrorDescription], ['bad', 'very']);
            assert.equal(message.applicationProperties.step, 3);
            await dead.completeMessage(message);
        });
    },

    async 'a lost lock refuses'(emulator) {
        await emulator.opened(await emulator.queue(), async ({ sender, receiver }) => {
            for (const settle of ['completeMessage', 'abandonMessage', 'deferMessage', 'deadLetterMessage', 'renewMessageLock']) {
                await sender.sendMessages({ body: settle });
                const message = await one(receiver);
                await emulator.advance(61);
                await assert.rejects(receiver[settle](message), code('MessageLockLost'), settle);
                await receiver.completeMessage(await one(receiver));
            }
        });
    },

    async 'a batch is one transfer'(emulator) {
        const queue = await emulator.queue();
        await emulator.opened(queue, async ({ sender, receiver }) => {
            const batch = await sender.createMessageBatch();
            for (const body of ['a', 'b', 'c']) batch.tryAddMessage({ body, messageId: body });
            await sender.sendMessages(batch);
            const messages = await receiver.receiveMessages(3, { maxWaitTimeInMs: 2000 });
            assert.deepEqual(messages.map(({ body }) => body), ['a', 'b', 'c']);
            const sends = await emulator.control('GET', `calls?operation=send&entity=${queue}`);
            assert.equal(sends.length, 1);
        });
    },

    async 'a deleting receiver takes no lock'(emulator) {
        const queue = await emulator.queue();
        const options = { receiver: { receiveMode: 'receiveAndDelete' } };
        const check = async ({ sender, receiver }) => {
            await sender.sendMessages({ body: 'x' });
            assert.equal((await one(receiver)).body, 'x');
            assert.deepEqual((await emulator.shown(queue)).messages, []);
        };
        await emulator.opened(queue, check, options);
    },

    async 'messages are pushed to a subscriber'(emulator) {
        const queue = await emulator.queue();
        await emulator.opened(queue, async ({ sender, receiver }) => {
            const got = [];
            await new Promise((resolve, reject) => {
                const processMessage = async ({ body }) => got.push(body) === 100 && resolve();
                const processError = async ({ error }) => reject(error);
                receiver.subscribe({ processMessage, processError }, { maxConcurrentCalls: 7 });
                sender.sendMessages(Array.from({ length: 100 }, (_, body) => ({ body }))).catch(reject);
            });
            assert.deepEqual(got.sort((a, b) => a - b), Array.from({ length: 100 }, (_, body) => body));
        });
    },
};
