'use strict';
const assert = require('node:assert/strict');
const { once } = require('node:events');
const { Raw, take } = require('./raw.js');

const ACCEPTED = 0x24;
const code = (state) => state.descriptor?.value ?? state.constructor.descriptor.numeric;

/** Runs a check with a queue that holds one message, locked, and a transaction that completes it and sends a copy. */
async function prepared(emulator, check) {
    const queue = await emulator.queue();
    const raw = await Raw.connect(emulator);
    await raw.claim(queue);
    const [sender, receiver, coordinator] = [await raw.sender(queue), await raw.receiver(queue), await raw.coordinator()];
    await raw.send(sender, { message_id: 'original', body: 'x' });
    const delivery = await take(receiver);
    const id = await raw.declare(coordinator);
    const ids = async () => (await emulator.shown(queue)).messages.map((message) => message.id);
    await raw.send(sender, { message_id: 'copy', body: 'x' }, id);
    await raw.accept(delivery, id);
    await check({ raw, sender, receiver, coordinator, delivery, id, ids, queue });
    raw.connection.close();
}

module.exports = {
    async 'a transaction takes effect when it is discharged'(emulator) {
        await prepared(emulator, async ({ raw, coordinator, id, ids }) => {
            assert.deepEqual(await ids(), ['original']);
            assert.equal(code(await raw.discharge(coordinator, id, false)), ACCEPTED);
            assert.deepEqual(await ids(), ['copy']);
            const { error } = await raw.discharge(coordinator, id, false);
            assert.equal(error.condition, 'amqp:transaction:unknown-id');
        });
    },

    async 'after a rollback the delivery is settled again'(emulator) {
        await prepared(emulator, async ({ raw, coordinator, id, ids, receiver, delivery }) => {
            assert.equal(code(await raw.discharge(coordinator, id, true)), ACCEPTED);
            assert.deepEqual(await ids(), ['original']);
            delivery.accept();
            await once(receiver, 'settled');
            assert.deepEqual(await ids(), []);
        });
    },

    async 'a lost lock rolls all of it back'(emulator) {
        await prepared(emulator, async ({ raw, coordinator, id, ids }) => {
            await emulator.advance(61);
            const { error } = await raw.discharge(coordinator, id, false);
            assert.equal(error.condition, 'amqp:transaction:rollback');
            assert.deepEqual(await ids(), ['original']);
        });
    },

    async 'after two minutes a transaction is not known'(emulator) {
        await prepared(emulator, async ({ raw, coordinator, id, ids }) => {
            await emulator.advance(121);
            const { error } = await raw.discharge(coordinator, id, false);
            assert.equal(error.condition, 'amqp:transaction:unknown-id');
            assert.deepEqual(await ids(), ['original']);
        });
    },

    async 'ids and properties have limits'(emulator) {
        const queue = await emulator.queue();
        const raw = await Raw.connect(emulator);
        await raw.claim(queue);
        const sender = await raw.sender(queue);
        const long = 'x'.repeat(129);
        for (const message of [
            { message_id: long },
            { group_id: long },
            { group_id: 'a', message_annotations: { 'x-opt-partition-key': 'b' } },
            { application_properties: { a: 'x'.repeat(40_000), b: 'y'.repeat(40_000) } },
        ]) {
            const { error } = await raw.send(sender, { ...message, body: 'x' });
            assert.equal(error?.condition, 'com.microsoft:argument-error', JSON.stringify(message).slice(0, 80));
        }
        assert.equal((await emulator.shown(queue)).messages.length, 0);
        raw.connection.close();
    },

    async 'the end of the connection rolls back'(emulator) {
        await prepared(emulator, async ({ raw, ids }) => {
            await raw.close();
            assert.deepEqual(await ids(), ['original']);
        });
    },

    async 'a fault can refuse transactions'(emulator) {
        const queue = await emulator.queue();
        await emulator.plant('attach-coordinator', 'error', { condition: 'amqp:not-allowed', status: 400 });
        const raw = await Raw.connect(emulator);
        await raw.claim(queue);
        const refused = once(raw.connection, 'sender_error');
        raw.coordinator().catch(() => {});
        const [{ sender }] = await refused;
        assert.equal(sender.error.condition, 'amqp:not-allowed');
        raw.connection.close();
    },

    async 'a fault can lose the answer to a discharge'(emulator) {
        await prepared(emulator, async ({ raw, coordinator, id, ids }) => {
            await emulator.plant('discharge', 'close-connection');
            raw.discharge(coordinator, id, false).catch(() => {});
            await once(raw.connection, 'connection_close');
            assert.deepEqual(await ids(), ['copy']);
        });
    },
};
