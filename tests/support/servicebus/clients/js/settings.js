'use strict';
const assert = require('node:assert/strict');
const { code, one } = require('./emulator.js');

module.exports = {
    async 'settings and counts are told over HTTP'(emulator) {
        const admin = emulator.admin();
        const wanted = {
            lockDuration: 'PT45S',
            maxDeliveryCount: 7,
            requiresDuplicateDetection: true,
            duplicateDetectionHistoryTimeWindow: 'PT2M',
            defaultMessageTimeToLive: 'P1D',
            deadLetteringOnMessageExpiration: true,
        };
        await admin.createQueue('settings-js', wanted);
        const read = await admin.getQueue('settings-js');
        for (const [name, value] of Object.entries(wanted)) assert.equal(read[name], value, name);
        await admin.updateQueue({ ...read, maxDeliveryCount: 8 });
        assert.equal((await admin.getQueue('settings-js')).maxDeliveryCount, 8);
        await emulator.opened('settings-js', async ({ sender, receiver }) => {
            await sender.sendMessages([{ body: 1, messageId: '1' }, { body: 2, messageId: '2' }]);
            await receiver.deadLetterMessage(await one(receiver));
        });
        const { activeMessageCount, deadLetterMessageCount } = await admin.getQueueRuntimeProperties('settings-js');
        assert.deepEqual([activeMessageCount, deadLetterMessageCount], [1, 1]);
        assert.equal((await admin.getNamespaceProperties()).messagingSku, 'Standard');
        await admin.deleteQueue('settings-js');
        assert.equal(await admin.queueExists('settings-js'), false);
    },

    async 'an unknown queue is not found'(emulator) {
        await emulator.opened('no-such-queue', async ({ sender }) => {
            await assert.rejects(sender.sendMessages({ body: 1 }), code('MessagingEntityNotFound'));
        });
    },

    async 'messages go over TLS'(emulator) {
        const check = async ({ sender, receiver }) => {
            await sender.sendMessages({ body: 'x' });
            const message = await one(receiver);
            await receiver.renewMessageLock(message);
            await receiver.completeMessage(message);
        };
        await emulator.opened(await emulator.queue(), check, { connectionString: emulator.overTls });
    },
};
