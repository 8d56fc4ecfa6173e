'use strict';
// The AMQP side: connections, and what each attached link is for.

require('./hooks.js');
const rhea = require('rhea');
const Connection = require('rhea/lib/connection.js');
const attach = require('./attach.js');
const { Claims } = require('./claims.js');
const { Transactions } = require('./transactions.js');
const { close } = require('./strikes.js');
const { ServiceError, resourceLimitExceeded, unauthorized } = require('../errors.js');

const CREDIT = 500;

class Broker {
    constructor({ namespace, clock, faults, tokens, options }) {
        Object.assign(this, { namespace, clock, faults, tokens, options });
        this.transactions = new Transactions(faults, clock);
        this.connections = new Map();
        this.container = this.listen();
    }

    /** Calls `ring` after a time, which is the machine's unless all time is virtual; returns what prevents it. */
    after(milliseconds, ring) {
        if (this.options.virtualTime) {
            const alarm = this.clock.alarm(ring);
            alarm.set(this.clock.now() + milliseconds);
            return () => alarm.clear();
        }
        const timer = setTimeout(ring, milliseconds);
        return () => clearTimeout(timer);
    }

    /** Serves AMQP on a socket. */
    accept(socket) {
        const { maxFrameSize, idleTimeout, channelMax } = this.options;
        const options = {
            max_frame_size: maxFrameSize,
            idle_time_out: idleTimeout,
            channel_max: channelMax,
            // Deliveries that a session may have unsettled.
            session_buffer_size: 65536,
            tcp_no_delay: true,
            sender_options: { treat_modified_as_released: false },
            receiver_options: { credit_window: 0, autoaccept: false },
        };
        const connection = new Connection(options, this.container);
        connection.accept(socket);
        socket.connection = connection;
        // rhea hears of the peer's end only, not of a socket that was cut.
        socket.on('close', () => connection._disconnected());
    }

    listen() {
        const container = rhea.create_container({ id: 'servicebus-emulator' });
        const mechanisms = container.sasl_server_mechanisms;
        mechanisms.enable_anonymous();
        mechanisms.MSSBCBS = mechanisms.ANONYMOUS;
        container.on('connection_open', ({ connection }) => this.opened(connection));
        for (const event of ['connection_close', 'disconnected']) {
            container.on(event, ({ connection }) => this.gone(connection));
        }
        container.on('sender_open', ({ sender }) => attach.toClient(this, sender));
        container.on('receiver_open', ({ receiver }) => attach.fromClient(this, receiver));
        container.on('sendable', ({ sender }) => sender.purpose?.flow());
        container.on('sender_draining', ({ sender }) => drain(sender));
        container.on('sender_close', ({ sender }) => this.ended(sender));
        container.on('receiver_close', ({ receiver }) => this.ended(receiver));
        container.on('session_close', ({ session }) => {
            this.linksOf(session.connection, (link) => link.session === session).forEach((link) => this.ended(link));
        });
        container.on('message', ({ message, delivery, receiver }) => this.received(message, delivery, receiver));
        for (const outcome of ['accepted', 'rejected', 'released', 'modified']) {
            container.on(outcome, ({ sender, delivery }) => sender.purpose?.settle?.(delivery));
        }
        container.on('transactional', ({ sender, delivery }) => sender.purpose?.settleInTransaction?.(delivery));
        for (const event of ['error', 'protocol_error']) container.on(event, (error) => console.error(error));
        for (const event of ['connection_error', 'session_error', 'sender_error', 'receiver_error']) {
            container.on(event, () => {});
        }
        return container;
    }

    opened(connection) {
        const expired = () => this.withdraw(connection);
        this.connections.set(connection, {
            claims: new Claims(this.tokens, this.clock, expired),
            answers: new Map(),
            links: new Set(),
        });
        const refuse = (error) => {
            connection.answer();
            close(connection, error);
        };
        // Faults strike at a link; before there is one, all of them mean the connection.
        const endpoint = { socket: connection.socket, close: refuse };
        const link = { connection: endpoint, session: endpoint, close: refuse };
        this.faults.run({ operation: 'open', link, refuse }, () => () => connection.answer());
    }

    gone(connection) {
        const state = this.connections.get(connection);
        if (!state) return;
        state.claims.stop();
        for (const link of [...state.links]) this.ended(link);
        this.connections.delete(connection);
    }

    /** Notes an attached link. */
    began(link) {
        this.connections.get(link.connection).links.add(link);
        // The links for tokens stay: what happens to them in the service is not documented.
        if (this.options.linkIdleTimeout > 0 && link.address !== '$cbs') {
            link.idle = this.clock.alarm(() => this.detachIdle(link));
            this.used(link);
        }
    }

    /** Notes that something has passed on a link. */
    used(link) {
        link?.idle?.set(this.clock.now() + this.options.linkIdleTimeout);
    }

    /** Notes a request on behalf of a link of that name. */
    usedBy(connection, name) {
        if (name !== undefined) this.linksOf(connection, (link) => link.name === name).forEach((link) => this.used(link));
    }

    /** Detaches a link on which nothing has passed for so long, as the service does after ten minutes. */
    detachIdle(link) {
        const seconds = this.options.linkIdleTimeout / 1000;
        const description = `The link is force detached by the broker. IdleTimerExpired: Idle timeout: ${seconds} s.`;
        const error = new ServiceError('amqp:link:detach-forced', description);
        if (link.purpose?.refuse) link.purpose.refuse(error);
        else close(link, error);
        this.ended(link);
    }

    /** Frees what a link holds that has gone. */
    ended(link) {
        link.idle?.clear();
        link.idle = undefined;
        this.connections.get(link.connection)?.links.delete(link);
        link.purpose?.closed?.();
    }

    linksOf(connection, filter = () => true) {
        return [...(this.connections.get(connection)?.links ?? [])].filter(filter);
    }

    claims(connection) {
        return this.connections.get(connection).claims;
    }

    /** Detaches the links of a connection that no token covers any more. */
    withdraw(connection) {
        const error = unauthorized('ExpiredToken: The token has expired and was not renewed.');
        const isBare = ({ address }) => address !== undefined && address !== '$cbs' && !this.claims(connection).cover(address);
        for (const link of this.linksOf(connection, isBare)) {
            if (link.purpose?.refuse) link.purpose.refuse(error);
            else close(link, error);
        }
    }

    received(bytes, delivery, receiver) {
        // What was on its way when the link was detached is lost.
        if (!receiver.is_open()) return;
        this.used(receiver);
        if (receiver.credits === undefined && receiver.credit < CREDIT / 2) receiver.add_credit(CREDIT - receiver.credit);
        receiver.purpose?.receive(bytes, delivery);
    }

    /** Returns the link for answers to requests that came by `receiver`. */
    answerLink({ connection, address }, replyTo) {
        const answers = this.connections.get(connection)?.answers;
        const link = answers?.get(`${address} ${replyTo}`) ?? answers?.get(address);
        this.used(link?.sender);
        return link;
    }

    /** Returns the attached links of an entity, or all. */
    links(entity) {
        const all = [...this.connections.keys()].flatMap((connection) => this.linksOf(connection));
        return entity === undefined || entity === null ? all : all.filter((link) => link.address === entity.toLowerCase());
    }
}

function drain(sender) {
    if (sender.purpose?.drain) sender.purpose.drain();
    else sender.set_drained(true);
}

module.exports = { Broker };
