'use strict';
// The settings of a queue under the names of the management API.

const durations = require('./durations.js');
const { badRequest } = require('../errors.js');

const MINUTE = 60_000;
const DAY = 24 * 60 * MINUTE;
const STATUSES = ['Active', 'Disabled', 'SendDisabled', 'ReceiveDisabled'];

// In the order in which the service writes them. Durations are kept in milliseconds.
const FIELDS = {
    LockDuration: { kind: 'duration', fallback: MINUTE, least: 5000, most: 5 * MINUTE },
    MaxSizeInMegabytes: { kind: 'number', fallback: 1024 },
    RequiresDuplicateDetection: { kind: 'boolean', fallback: false, fixed: true },
    RequiresSession: { kind: 'boolean', fallback: false, fixed: true },
    DefaultMessageTimeToLive: { kind: 'duration', fallback: Infinity, least: 1000 },
    DeadLetteringOnMessageExpiration: { kind: 'boolean', fallback: false },
    DuplicateDetectionHistoryTimeWindow: { kind: 'duration', fallback: 10 * MINUTE, least: 20_000, most: 7 * DAY },
    MaxDeliveryCount: { kind: 'number', fallback: 10, least: 1, most: 2000 },
    EnableBatchedOperations: { kind: 'boolean', fallback: true },
    Status: { kind: 'status', fallback: 'Active' },
    ForwardTo: { kind: 'text', fallback: '' },
    ForwardDeadLetteredMessagesTo: { kind: 'text', fallback: '' },
    UserMetadata: { kind: 'text', fallback: '' },
    AutoDeleteOnIdle: { kind: 'duration', fallback: Infinity, least: 5 * MINUTE },
    EnablePartitioning: { kind: 'boolean', fallback: false, fixed: true },
    EnableExpress: { kind: 'boolean', fallback: false },
};

const READ = {
    duration: (text) => durations.parse(text),
    number: (text) => (/^\d+$/.test(text) ? Number(text) : undefined),
    boolean: (text) => ({ true: true, false: false })[text.toLowerCase()],
    status: (text) => STATUSES.find((status) => status === text),
    text: (text) => text,
};

/** Returns the settings of a new queue. */
function defaults() {
    return Object.fromEntries(Object.entries(FIELDS).map(([name, field]) => [name, field.fallback]));
}

/**
 * Returns `base` with the given values, which are texts or JSON values; names that the emulator does not know are ignored.
 * With `limits`, values outside the service's limits are refused; tests that need a lock of 100 ms do without.
 */
function changed(base, values, { limits = true } = {}) {
    const settings = { ...base };
    for (const [name, field] of Object.entries(FIELDS)) {
        if (values[name] === undefined) continue;
        const value = READ[field.kind](String(values[name]));
        if (value === undefined) throw badRequest(`'${values[name]}' is no value for ${name}.`);
        if (limits && (value < field.least || value > field.most)) {
            throw badRequest(`The value '${values[name]}' of ${name} is outside the allowed range.`);
        }
        settings[name] = value;
    }
    return settings;
}

/** Returns the name of a setting that differs and cannot be changed, if there is one. */
function fixedDifference(one, other) {
    return Object.keys(FIELDS).find((name) => FIELDS[name].fixed && one[name] !== other[name]);
}

/** Returns the settings as texts, in the service's order. */
function texts(settings) {
    return Object.entries(FIELDS).map(([name, field]) => {
        const value = settings[name];
        return [name, field.kind === 'duration' ? durations.format(value) : String(value)];
    });
}

module.exports = { changed, defaults, fixedDifference, texts };
