'use strict';
// Links as bare AMQP sees them.

const assert = require('node:assert/strict');
const { once } = require('node:events');
const { Raw, take } = require('./raw.js');

/** Runs a check with a queue, a connection that may use it, and a sender. */
async function opened(emulator, check) {
    const queue = await emulator.queue();
    const raw = await Raw.connect(emulator);
    assert.equal(await raw.claim(queue), 200);
    await check({ queue, raw, sender: await raw.sender(queue) });
    raw.connection.close();
}

module.exports = {
    async 'a drain is answered, with and without messages'(emulator) {
        await opened(emulator, async ({ queue, raw, sender }) => {
            await raw.send(sender, { body: 'x' });
            const receiver = await raw.receiver(queue);
            for (const messages of [1, 0]) {
                let got = 0;
                receiver.on('message', () => (got += 1));
                receiver.add_credit(1);
                receiver.drain_credit();
                await once(receiver, 'receiver_drained');
                assert.equal(got, messages);
                receiver.removeAllListeners('message');
                receiver.drain = false;
            }
        });
    },

    async 'a link needs a token for its entity'(emulator) {
        await opened(emulator, async ({ raw }) => {
            const other = raw.session.open_sender(await emulator.queue());
            await once(other, 'sender_error');
            assert.equal(other.error.condition, 'amqp:unauthorized-access');
        });
    },

    async 'a token that runs out ends the links'(emulator) {
        await opened(emulator, async ({ raw, sender }) => {
            await emulator.advance(3500);
            await raw.send(sender, { body: 'x' });
            await emulator.advance(200);
            if (!sender.error) await once(sender, 'sender_error');
            assert.equal(sender.error.condition, 'amqp:unauthorized-access');
        });
    },

    async 'links of a queue end with it, those for its management too'(emulator) {
        await opened(emulator, async ({ queue, raw, sender }) => {
            const links = [sender, await raw.sender(`${queue}/$management`)];
            const ends = links.map((link) => once(link, 'sender_error'));
            await emulator.control('DELETE', `queues/${queue}`);
            await Promise.all(ends);
            for (const link of links) assert.equal(link.error.condition, 'amqp:not-found');
        });
    },

    async 'a settlement before a detach counts'(emulator) {
        await opened(emulator, async ({ queue, raw, sender }) => {
            await raw.send(sender, { body: 'x' });
            const receiver = await raw.receiver(queue);
            (await take(receiver)).accept();
            receiver.close();
            await once(receiver, 'receiver_close');
            assert.deepEqual((await emulator.shown(queue)).messages, []);
        });
    },

    async 'a delivery that is dropped stays locked'(emulator) {
        await opened(emulator, async ({ queue, raw, sender }) => {
            const fault = await emulator.plant('deliver', 'drop', { entity: queue });
            await raw.send(sender, { message_id: 'm', body: 'x' });
            const receiver = await raw.receiver(queue);
            receiver.add_credit(1);
            await emulator.control('GET', `faults/${fault.id}?hits=1&wait=5000`);
            const messages = [];
            const arrival = once(receiver, 'message');
            receiver.on('message', (context) => messages.push(context));
            assert.equal((await emulator.shown(queue)).messages.length, 1);
            assert.deepEqual(messages, []);
            await emulator.advance(61);
            const [{ message }] = await arrival;
            assert.equal(message.delivery_count, 1);
        });
    },

    async 'a starved sender gets no credit'(emulator) {
        await opened(emulator, async ({ queue, raw }) => {
            await emulator.plant('attach-sender', 'starve', { entity: queue });
            const sender = raw.session.open_sender({ target: queue, name: 'starved' });
            await once(sender, 'sender_open');
            const [{ credit }] = (await emulator.control('GET', `links?entity=${queue}`)).slice(-1);
            assert.equal(credit, 0);
        });
    },

    async 'a frozen connection stays open and silent'(emulator) {
        await opened(emulator, async ({ queue, raw, sender }) => {
            assert.equal((await emulator.control('POST', 'strike', { action: 'freeze', entity: queue })).struck, 1);
            sender.send({ body: 'x' });
            const silence = new Promise((resolve) => setTimeout(() => resolve('silent'), 300));
            assert.equal(await Promise.race([once(sender, 'settled'), silence]), 'silent');
            assert.deepEqual((await emulator.shown(queue)).messages, []);
            raw.connection.socket.destroy();
        });
    },

    async 'an undecodable message costs only itself'(emulator) {
        await opened(emulator, async ({ queue, raw, sender }) => {
            sender.send(Buffer.from([0x00, 0x53, 0x99, 0x45]), undefined, 0);
            const [{ delivery }] = await once(sender, 'rejected');
            assert.equal(delivery.remote_state.error.condition, 'com.microsoft:argument-error');
            await raw.send(sender, { message_id: 'good', body: 'x' });
            assert.deepEqual((await emulator.shown(queue)).messages.map(({ id }) => id), ['good']);
        });
    },

    async 'a second detach ends the session'(emulator) {
        await opened(emulator, async ({ queue, raw }) => {
            const receiver = await raw.receiver(queue);
            receiver.close();
            await once(receiver, 'receiver_close');
            raw.session.output(receiver.local.detach);
            await once(raw.session, 'session_error');
            assert.equal(raw.session.error.condition, 'amqp:session:unattached-handle');
        });
    },

    async 'the name of a link is free again after its detach'(emulator) {
        await opened(emulator, async ({ queue, raw, sender }) => {
            for (let i = 0; i < 3; i += 1) {
                await raw.send(sender, { body: 'x' });
                const receiver = await raw.receiver(queue, { name: 'same' });
                (await take(receiver)).accept();
                receiver.close();
                await once(receiver, 'receiver_close');
            }
            assert.deepEqual((await emulator.shown(queue)).messages, []);
        });
    },
};
