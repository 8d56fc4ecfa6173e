'use strict';
// Links that take one session of a queue.

const { types } = require('rhea');
const { timedOut } = require('../errors.js');
const { close } = require('./strikes.js');

const SESSION_FILTER = 'com.microsoft:session-filter';
const LOCKED_UNTIL = 'com.microsoft:locked-until-utc';
const TIMEOUT = 'com.microsoft:timeout';
const USUAL_WAIT = 60_000;
/** The ticks of .NET, 100 ns each, at the start of 1970. */
const EPOCH = 621355968000000000n;

/**
 * Locks the session of that id, or the next free one with messages, for a link; returns what answers the attach. While no
 * session is free the attach goes unanswered, until the client's timeout.
 */
function acceptSession(broker, link, id) {
    const { sessions } = link.queue;
    if (id !== undefined) {
        const session = sessions.accept(String(id), link);
        return () => open(link, session);
    }
    const session = broker.options.sessionSearch > 0 ? undefined : sessions.acceptNext(link);
    if (session) return () => open(link, session);
    return () => wait(broker, link);
}

function open(link, session) {
    const { sender } = link;
    link.session = session;
    sender.set_source({ address: sender.remote.attach.source.address, filter: { [SESSION_FILTER]: session.id } });
    const ticks = Buffer.alloc(8);
    ticks.writeBigInt64BE(BigInt(session.until) * 10_000n + EPOCH);
    sender.local.attach.properties = { [LOCKED_UNTIL]: types.Long(ticks) };
    link.open();
}

function wait(broker, link) {
    const { sender, queue } = link;
    let isSearching = broker.options.sessionSearch > 0;
    const stop = () => {
        end();
        found();
        queue.sessions.stopWaiting(look);
    };
    const look = () => {
        if (isSearching) return;
        const session = queue.sessions.acceptNext(link);
        if (!session) return;
        stop();
        open(link, session);
    };
    const giveUp = () => {
        stop();
        sender.local.attach.source = undefined;
        sender.answer();
        close(sender, timedOut('The wait for a session'));
    };
    const end = broker.after(
        Number(sender.remote.attach.properties?.[TIMEOUT] ?? USUAL_WAIT) + broker.options.sessionOvertime,
        giveUp,
    );
    // The service looks for a session in its store.
    const found = broker.after(broker.options.sessionSearch, () => {
        isSearching = false;
        look();
    });
    queue.sessions.wait(look);
    // The client may give up.
    const { closed } = link;
    link.closed = () => {
        stop();
        closed.call(link);
    };
}

module.exports = { SESSION_FILTER, acceptSession };
