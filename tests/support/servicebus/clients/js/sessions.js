'use strict';
const assert = require('node:assert/strict');
const { code, identified, one } = require('./emulator.js');

/** Runs a check with a client and a queue of sessions that holds a message for each id. */
async function opened(emulator, ids, check) {
    const queue = await emulator.queue({ RequiresSession: true });
    const client = emulator.client();
    try {
        if (ids.length > 0) await identified(client.createSender(queue)).sendMessages(ids.map((sessionId) => ({ body: sessionId, sessionId })));
        await check(client, queue);
    } finally {
        await client.close();
    }
}

module.exports = {
    async 'a session is accepted, renewed, and refused to others'(emulator) {
        await opened(emulator, ['a', 'b'], async (client, queue) => {
            const session = await client.acceptSession(queue, 'b');
            const message = await one(session);
            assert.deepEqual([message.body, message.sessionId, session.sessionId], ['b', 'b', 'b']);
            const until = session.sessionLockedUntilUtc;
            await emulator.advance(20);
            assert.ok((await session.renewSessionLock()) > until);
            await assert.rejects(client.acceptSession(queue, 'b'), code('SessionCannotBeLocked'));
            await session.completeMessage(message);
            const next = await client.acceptNextSession(queue);
            assert.equal(next.sessionId, 'a');
            await session.close();
            await (await client.acceptSession(queue, 'b')).close();
        });
    },

    async 'no free session is a timeout'(emulator) {
        await opened(emulator, [], async (client, queue) => {
            await assert.rejects(client.acceptNextSession(queue), code('ServiceTimeout'));
        });
    },

    async 'a session keeps its state'(emulator) {
        await opened(emulator, [], async (client, queue) => {
            const session = await client.acceptSession(queue, 's');
            assert.equal(await session.getSessionState(), null);
            await session.setSessionState({ done: 3 });
            assert.deepEqual(await session.getSessionState(), { done: 3 });
        });
    },

    async 'an expired session is lost'(emulator) {
        await opened(emulator, ['s'], async (client, queue) => {
            const session = await client.acceptSession(queue, 's');
            await emulator.advance(61);
            await assert.rejects(session.renewSessionLock(), code('SessionLockLost'));
        });
    },
};
