'use strict';
// AMQP messages as bytes. The emulator keeps the sections it received and re-encodes only those it must change,
// because decoding to plain values loses the AMQP types.

const { types } = require('rhea');

const NAMES = [
    [0x70, 'amqp:header:list', 'header'],
    [0x71, 'amqp:delivery-annotations:map', 'delivery annotations'],
    [0x72, 'amqp:message-annotations:map', 'message annotations'],
    [0x73, 'amqp:properties:list', 'properties'],
    [0x74, 'amqp:application-properties:map', 'application properties'],
    [0x75, 'amqp:data:binary', 'data'],
    [0x76, 'amqp:amqp-sequence:list', 'sequence'],
    [0x77, 'amqp:value:*', 'value'],
    [0x78, 'amqp:footer:map', 'footer'],
    [0x78, 'amqp:footer', 'footer'],
];
const SECTIONS = new Map(NAMES.flatMap(([code, symbol, name]) => [[code, name], [symbol, name]]));
/** A body of a type that does not exist. */
const GARBAGE = Buffer.from([0x00, 0x53, 0x77, 0x1f]);
/** The longest time to live in a header, in milliseconds. */
const LONGEST_TTL = 2 ** 32 - 1;
const BODY = ['data', 'sequence', 'value', 'footer'];

/** A message whose sections keep their bytes. */
class Message {
    /** Reads the bytes of a message; throws when they are none. */
    constructor(raw) {
        this.size = raw.length;
        this.sections = readSections(raw);
        const properties = this.list('properties');
        this.header = this.list('header');
        this.ttl = lifeOf(this.header, properties);
        this.messageId = identity(properties[0]);
        this.replyTo = plain(properties[4]);
        this.sessionId = plain(properties[10]);
        this.annotations = this.map('message annotations');
        this.applicationProperties = this.map('application properties');
    }

    /** The bytes of all properties, the system's included. */
    get propertiesSize() {
        return ['properties', 'application properties'].reduce((sum, name) => sum + (this.section(name)?.raw.length ?? 0), 0);
    }

    section(name) {
        return this.sections.find((section) => section.name === name);
    }

    list(name) {
        return this.section(name)?.value.value ?? [];
    }

    map(name) {
        return entries(this.section(name)?.value);
    }

    /** Returns the AMQP values of all body sections of one kind. */
    bodies(name) {
        return this.sections.filter((section) => section.name === name).map((section) => section.value);
    }

    /** Returns the time at which the message is to become visible, if it names one. */
    get scheduledFor() {
        const at = plain(this.annotations.get('x-opt-scheduled-enqueue-time'));
        return at === undefined || at === null ? undefined : Number(at);
    }

    /** Returns the bytes with another delivery count, and with annotations and application properties added. */
    encode(deliveryCount, annotations, applicationProperties) {
        const [durable, priority] = this.header;
        const ttl = this.ttl === undefined ? undefined : types.wrap_uint(Math.min(this.ttl, LONGEST_TTL));
        const header = types.List32([durable, priority, ttl, undefined, types.wrap_uint(deliveryCount)]);
        const parts = [
            write(0x70, header),
            write(0x72, mapOf(merged(this.annotations, annotations), types.wrap_symbol)),
        ];
        const properties = this.section('properties');
        if (properties) parts.push(properties.raw);
        const added = merged(this.applicationProperties, applicationProperties);
        if (added.size > 0) parts.push(write(0x74, mapOf(added, types.wrap_string)));
        for (const { name, raw } of this.sections) if (BODY.includes(name)) parts.push(this.isGarbled ? GARBAGE : raw);
        return Buffer.concat(parts);
    }

    /** Returns the bytes with application properties added, and with that value as the body. */
    replaced(applicationProperties, value) {
        const kept = ['header', 'properties'].map((name) => this.section(name)?.raw).filter((raw) => raw);
        const properties = merged(this.applicationProperties, applicationProperties);
        return Buffer.concat([...kept, write(0x74, mapOf(properties, types.wrap_string)), write(0x77, value)]);
    }
}

/** Returns the time to live of a message: the difference of its expiry and its creation, or that of the header without them. */
function lifeOf(header, properties) {
    const life = Number(plain(properties[8])) - Number(plain(properties[9]));
    return life > 0 ? life : plain(header[2]);
}

function readSections(raw) {
    const reader = new types.Reader(raw);
    const sections = [];
    while (reader.remaining() > 0) {
        const start = reader.position;
        const { descriptor, descriptors } = reader.read_constructor();
        const name = SECTIONS.get(plain(descriptor));
        if (name === undefined) throw new Error('a section of a message has no known descriptor');
        reader.position = start;
        const value = reader.read();
        // A body may be a described value; `read` drops its descriptor.
        sections.push({ name, value, described: plain(descriptors?.[1]), raw: raw.subarray(start, reader.position) });
    }
    return sections;
}

function write(code, value) {
    const writer = new types.Writer();
    writer.write(types.described(types.wrap_ulong(code), value));
    return Buffer.from(writer.toBuffer());
}

function merged(one, other) {
    return new Map([...one, ...(other ?? [])]);
}

function mapOf(values, key) {
    return types.Map32([...values].flatMap(([name, value]) => [key(name), value]));
}

/** Returns the entries of an AMQP map, keys as strings, values still typed. */
function entries(map) {
    const found = new Map();
    const items = map?.value ?? [];
    for (let i = 0; i + 1 < items.length; i += 2) found.set(String(plain(items[i])), items[i + 1]);
    return found;
}

/** Returns the JavaScript value of an AMQP value. */
function plain(value) {
    return value === undefined || value === null ? undefined : types.unwrap(value) ?? undefined;
}

/** Returns an AMQP long as a number. */
function number(value) {
    const read = plain(value);
    return Buffer.isBuffer(read) ? Number(read.readBigInt64BE()) : Number(read);
}

/** Returns a message id as a string that differs for different AMQP types. */
function identity(value) {
    const read = plain(value);
    if (read === undefined) return undefined;
    return Buffer.isBuffer(read) ? `bytes:${read.toString('hex')}` : String(read);
}

module.exports = { Message, entries, identity, number, plain };
