'use strict';
// The Atom documents of the management API.

const settings = require('../store/settings.js');

const ATOM = 'http://www.w3.org/2005/Atom';
const SERVICEBUS = 'http://schemas.microsoft.com/netservices/2010/10/servicebus/connect';
const COUNTS = 'http://schemas.microsoft.com/netservices/2011/06/servicebus';
const ESCAPES = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&apos;' };

const escaped = (text) => String(text).replace(/[&<>"']/g, (sign) => ESCAPES[sign]);
const unescaped = (text) =>
    Object.entries(ESCAPES).reduceRight((read, [sign, escape]) => read.replaceAll(escape, sign), text);
const element = (name, text) => `<${name}>${escaped(text)}</${name}>`;
const time = (milliseconds) => new Date(milliseconds).toISOString();

/** Returns the settings in the body of a request: the leaf elements of its description. */
function read(xml) {
    const leaf = /<(?:\w+:)?(\w+)(?:\s[^>]*)?>([^<]*)<\//g;
    return Object.fromEntries([...xml.matchAll(leaf)].map(([, name, text]) => [name, unescaped(text.trim())]));
}

/** Returns the entry of a queue, without the declaration of XML. */
function entry(queue, base) {
    const about = `<id>${escaped(`${base}/${queue.name}`)}</id><title type="text">${escaped(queue.name)}</title>`;
    const times = element('published', time(queue.created)) + element('updated', time(queue.created));
    return (
        `<entry xmlns="${ATOM}">${about}${times}<content type="application/xml">` +
        `${description(queue)}</content></entry>`
    );
}

function description(queue) {
    const { active, scheduled, deferred, deadLetters } = queue.counts();
    const fields = settings.texts(queue.settings).map(([name, text]) => element(name, text));
    // Deferred messages are among the active ones.
    const counts = [
        element('d2p1:ActiveMessageCount', active + deferred),
        element('d2p1:DeadLetterMessageCount', deadLetters),
        element('d2p1:ScheduledMessageCount', scheduled),
        element('d2p1:TransferMessageCount', 0),
        element('d2p1:TransferDeadLetterMessageCount', 0),
    ].join('');
    const runtime = [
        element('SizeInBytes', queue.size),
        element('MessageCount', active + scheduled + deferred + deadLetters),
        ...['CreatedAt', 'UpdatedAt', 'AccessedAt'].map((name) => element(name, time(queue.created))),
        `<CountDetails xmlns:d2p1="${COUNTS}">${counts}</CountDetails>`,
        element('EntityAvailabilityStatus', 'Available'),
    ];
    const schema = 'http://www.w3.org/2001/XMLSchema-instance';
    const body = [...fields, ...runtime].join('');
    return `<QueueDescription xmlns="${SERVICEBUS}" xmlns:i="${schema}">${body}</QueueDescription>`;
}

/** Returns a feed of entries. */
function feed(title, base, entries) {
    const about = `<title type="text">${title}</title><id>${escaped(base)}</id>${element('updated', time(Date.now()))}`;
    return `<feed xmlns="${ATOM}">${about}${entries.join('')}</feed>`;
}

/** Returns the description of the namespace, which tells the tier. */
function namespace({ name, sku, created }, base) {
    const fields = [
        element('CreatedTime', time(created)),
        element('MessagingSKU', sku),
        element('MessagingUnits', 0),
        element('ModifiedTime', time(created)),
        element('Name', name),
        element('NamespaceType', 'Messaging'),
    ];
    return (
        `<entry xmlns="${ATOM}"><id>${escaped(base)}</id><title type="text">${escaped(name)}</title>` +
        `${element('updated', time(created))}<author>${element('name', name)}</author>` +
        `<content type="application/xml"><NamespaceInfo xmlns="${SERVICEBUS}">${fields.join('')}</NamespaceInfo></content></entry>`
    );
}

/** Returns a document whose counts of messages are all 0. */
const miscounted = (xml) => xml.replace(/(<(?:d2p1:)?\w*MessageCount>)\d+/g, (_, start) => `${start}0`);

const error = (status, detail) => `<Error>${element('Code', status)}${element('Detail', detail)}</Error>`;

module.exports = { entry, error, feed, miscounted, namespace, read };
