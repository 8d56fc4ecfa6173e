'use strict';
// What the gateway reads in the Atom documents of the management API.

const { read } = require('../http/atom.js');
const durations = require('../store/durations.js');

const SERVICEBUS = 'http://schemas.microsoft.com/netservices/2010/10/servicebus/connect';
const LIMITS = {
    LockDuration: (text) => within(text, 5000, 300_000),
    DuplicateDetectionHistoryTimeWindow: (text) => within(text, 20_000, 7 * 86_400_000),
    DefaultMessageTimeToLive: (text) => within(text, 1000, Infinity),
    MaxDeliveryCount: (count) => String(Math.min(Number(count), 2000)),
};
/** The settings, in the order that the service demands. */
const ORDER = [
    'LockDuration',
    'MaxSizeInMegabytes',
    'RequiresDuplicateDetection',
    'RequiresSession',
    'DefaultMessageTimeToLive',
    'DeadLetteringOnMessageExpiration',
    'DuplicateDetectionHistoryTimeWindow',
    'MaxDeliveryCount',
    'EnableBatchedOperations',
    'Status',
    'UserMetadata',
    'AutoDeleteOnIdle',
    'EnablePartitioning',
];

function within(text, least, most) {
    const milliseconds = durations.parse(String(text));
    return milliseconds === undefined ? String(text) : durations.format(Math.max(least, Math.min(most, milliseconds)));
}

/** Returns the entry of a queue with these settings; what is outside the service's limits is moved to the limit. */
function description(settings) {
    const fields = ORDER.filter((name) => settings[name] !== undefined).map((name) => {
        const text = LIMITS[name] ? LIMITS[name](settings[name]) : String(settings[name]);
        return `<${name}>${text.replace(/&/g, '&amp;').replace(/</g, '&lt;')}</${name}>`;
    });
    return (
        '<?xml version="1.0" encoding="utf-8"?><entry xmlns="http://www.w3.org/2005/Atom"><content type="application/xml">' +
        `<QueueDescription xmlns="${SERVICEBUS}">${fields.join('')}</QueueDescription></content></entry>`
    );
}

/** Returns the settings in an entry. */
function settings(entry) {
    const found = read(entry);
    return Object.fromEntries(ORDER.filter((name) => found[name] !== undefined).map((name) => [name, found[name]]));
}

/** Returns the entries of a feed, each with its name and its text. */
function entries(feed) {
    const found = feed.match(/<entry[\s>][\s\S]*?<\/entry>/g) ?? [];
    return found.map((text) => ({ name: /<title[^>]*>([^<]*)<\/title>/.exec(text)?.[1] ?? '', text }));
}

/** Returns a feed with these entries in the place of its own. */
function withEntries(feed, kept) {
    const rest = feed.replace(/<entry[\s>][\s\S]*?<\/entry>/g, '');
    return rest.replace('</feed>', `${kept.map(({ text }) => text).join('')}</feed>`);
}

module.exports = { description, entries, settings, withEntries };
