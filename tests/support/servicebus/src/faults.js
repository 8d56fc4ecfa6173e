'use strict';
// Planted faults: each waits for calls of an operation and spoils so many of them.

const { ServiceError, badRequest, serverBusy } = require('./errors.js');
const { strike, STRIKES } = require('./amqp/strikes.js');

const JOURNAL = 2000;
const ACTIONS = ['drop', 'delay', 'hold', 'busy', 'error', 'starve', 'garble', 'miscount', 'undate', 'page', ...STRIKES];

/** What a gateway on the way says. */
const PAGE = '<html><body><h1>404 Not Found</h1></body></html>';

class Faults {
    constructor() {
        this.planted = new Map();
        this.lastId = 0;
        this.journal = [];
        this.calls = 0;
        this.watchers = new Set();
    }

    /** Plants a fault; the README tells the fields. */
    plant(fields) {
        const fault = new Fault(++this.lastId, fields);
        this.planted.set(fault.id, fault);
        return fault;
    }

    get(id) {
        const fault = this.planted.get(Number(id));
        if (!fault) throw new ServiceError('amqp:not-found', `There is no fault ${id}.`, 404);
        return fault;
    }

    /** Removes a fault; the calls that it holds go on. */
    remove(id) {
        const fault = this.get(id);
        this.planted.delete(fault.id);
        fault.release();
    }

    clear() {
        for (const id of [...this.planted.keys()]) this.remove(id);
    }

    /**
     * Runs a call through the faults. `perform` does the work and returns a function that sends the answer.
     * A call has an `operation`, perhaps a `group` and an `entity`, the `link` it came by if any, and `refuse(error)`.
     */
    run(call, perform) {
        const fault = [...this.planted.values()].find((planted) => planted.takes(call));
        this.note(call, fault);
        if (!fault) {
            perform()();
            return;
        }
        fault.spoil(call, perform);
    }

    note(call, fault) {
        const { operation, entity } = call;
        this.calls += 1;
        this.journal.push({ number: this.calls, operation, entity, fault: fault?.id });
        if (this.journal.length > JOURNAL) this.journal.shift();
        for (const watcher of [...this.watchers]) watcher();
    }

    /** Resolves when `condition` holds, which is looked at after each call, or when the time is over; tells whether it held. */
    until(condition, milliseconds) {
        return new Promise((resolve) => {
            const done = (held) => {
                clearTimeout(timer);
                this.watchers.delete(look);
                resolve(held);
            };
            const look = () => condition() && done(true);
            const timer = setTimeout(() => done(false), milliseconds);
            this.watchers.add(look);
            look();
        });
    }
}

class Fault {
    constructor(id, fields) {
        const { operation, action, entity, times = 1, skip = 0 } = fields;
        if (typeof operation !== 'string') throw badRequest('A fault needs an `operation`.');
        if (!ACTIONS.includes(action)) throw badRequest(`An action is one of ${ACTIONS.join(', ')}.`);
        this.id = id;
        this.fields = fields;
        this.operation = operation;
        this.action = action;
        this.entity = entity?.toLowerCase();
        // `null` stands for always.
        this.left = times === null ? Infinity : times;
        this.skip = skip;
        this.hits = 0;
        this.held = [];
    }

    /** Tells whether the fault spoils this call, and counts it. */
    takes(call) {
        const { operation, entity } = this;
        const isMeant = operation === '*' || operation === call.operation || operation === call.group;
        if (!isMeant || this.left === 0) return false;
        if (entity !== undefined && entity !== call.entity?.toLowerCase()) return false;
        if (this.skip > 0) {
            this.skip -= 1;
            return false;
        }
        this.left -= 1;
        this.hits += 1;
        return true;
    }

    spoil(call, perform) {
        const { action, fields } = this;
        if (['starve', 'garble', 'miscount', 'undate'].includes(action)) {
            call[action]?.(fields);
            perform()();
            return;
        }
        if (action === 'busy' || action === 'error') {
            const refuse = () => call.refuse(action === 'busy' ? serverBusy() : this.error());
            perhaps(fields.performed, call, perform, refuse);
            return;
        }
        if (action === 'page') {
            const { status = 404, page = PAGE } = fields;
            perhaps(fields.performed, call, perform, () => call.page?.(status, page));
            return;
        }
        const late = () => this.answerLater(call, perform);
        if (action === 'delay') {
            setTimeout(late(), fields.milliseconds ?? 1000);
        } else if (action === 'hold') {
            this.held.push(late());
        } else {
            const end = () => (action === 'drop' ? call.drop?.() : strike(action, call.link, fields));
            perhaps(fields.performed ?? true, call, perform, end);
        }
    }

    /** Performs the call now, or with `performed: false` together with its answer; returns what sends the answer. */
    answerLater(call, perform) {
        if (this.fields.performed ?? true) return perform();
        return () => {
            try {
                perform()();
            } catch (error) {
                call.refuse(error);
            }
        };
    }

    error() {
        const { condition = 'amqp:internal-error', description = 'Planted by the test.', status = 500 } = this.fields;
        return new ServiceError(condition, description, status);
    }

    /** Lets the held calls go on. */
    release() {
        for (const answer of this.held.splice(0)) answer();
    }

    toJSON() {
        const left = this.left === Infinity ? null : this.left;
        return { id: this.id, ...this.fields, left, hits: this.hits, held: this.held.length };
    }
}

/** Performs a call if it is to be performed, and goes on when that is done: at once, unless the call has to be carried to a namespace. */
function perhaps(isPerformed, call, perform, goOn) {
    if (isPerformed) perform();
    if (isPerformed && call.whenPerformed) call.whenPerformed(goOn);
    else goOn();
}

module.exports = { Faults };
