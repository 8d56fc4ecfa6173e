'use strict';
// AMQP transactions: work is noted until the discharge, then checked and applied as one.

const { randomBytes } = require('node:crypto');
const { plain, Message } = require('../message.js');
const { ServiceError, badRequest } = require('../errors.js');
const outcomes = require('./outcomes.js');

const DECLARE = [0x31, 'amqp:declare:list'];
const DISCHARGE = [0x32, 'amqp:discharge:list'];
const unknown = () => new ServiceError('amqp:transaction:unknown-id', 'The transaction is not known or has ended.');

/** The time that a transaction has, in milliseconds. */
const LONGEST = 120_000;

class Transactions {
    constructor(faults, clock) {
        this.faults = faults;
        this.clock = clock;
        this.open = new Map();
    }

    /** Adds work to an open transaction of the connection; throws when there is none with that id. */
    join(connection, id, work) {
        this.find(connection, id).work.push(work);
    }

    find(connection, id) {
        const transaction = this.open.get(hex(id));
        if (transaction?.connection !== connection || transaction.end <= this.clock.now()) throw unknown();
        return transaction;
    }

    /** Serves a message on a control link. */
    control(bytes, delivery, receiver) {
        const refuse = (error) => delivery.update(true, outcomes.rejected(error));
        try {
            const { described, value: body } = request(bytes);
            const isDeclare = DECLARE.includes(described);
            if (!isDeclare && !DISCHARGE.includes(described)) throw badRequest('This is no request for a coordinator.');
            const call = { operation: isDeclare ? 'declare' : 'discharge', group: 'transaction', link: receiver, refuse };
            const perform = isDeclare ? () => this.declare(receiver) : () => this.discharge(receiver, body);
            this.faults.run(call, () => {
                const state = perform();
                return () => delivery.update(true, state);
            });
        } catch (error) {
            if (!(error instanceof ServiceError)) throw error;
            refuse(error);
        }
    }

    declare(link) {
        const id = randomBytes(16);
        this.open.set(hex(id), { connection: link.connection, link, work: [], end: this.clock.now() + LONGEST });
        return outcomes.declared(id);
    }

    discharge({ connection }, { value: [id, fail] }) {
        const key = plain(id);
        const { work } = this.find(connection, key);
        this.open.delete(hex(key));
        if (plain(fail) !== true) commit(work);
        return outcomes.accepted();
    }

    /** Rolls the open transactions of a control link back that has gone, by itself or with its connection. */
    abandon(link) {
        for (const [id, transaction] of this.open) {
            if (transaction.link === link) this.open.delete(id);
        }
    }
}

function commit(work) {
    try {
        for (const { check } of work) check();
    } catch (error) {
        if (!(error instanceof ServiceError)) throw error;
        throw new ServiceError('amqp:transaction:rollback', error.description);
    }
    for (const { apply } of work) apply();
}

function request(bytes) {
    try {
        return new Message(bytes).section('value') ?? {};
    } catch (error) {
        throw badRequest(`The message cannot be decoded: ${error.message}.`);
    }
}

const hex = (id) => Buffer.from(id).toString('hex');

module.exports = { Transactions };
