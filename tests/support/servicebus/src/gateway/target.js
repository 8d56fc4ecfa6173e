'use strict';
// The namespace behind the gateway: where it is, how it is dialled, and the key that opens it.

const { createHmac } = require('node:crypto');
const http = require('node:http');
const https = require('node:https');
const net = require('node:net');
const tls = require('node:tls');

class Target {
    /** Reads a connection string. No error repeats a part of it. A certificate is one to trust besides the usual ones. */
    constructor(text, certificate) {
        const settings = new Map(text.split(';').map(setting));
        const endpoint = /^sb:\/\/([^:/]+)(?::(\d+))?\/?$/i.exec(settings.get('endpoint') ?? '');
        if (!endpoint) throw new Error('The connection string of the namespace has no Endpoint=sb://…');
        this.keyName = settings.get('sharedaccesskeyname');
        this.key = settings.get('sharedaccesskey');
        if (!this.keyName || !this.key) throw new Error('The connection string of the namespace has no key.');
        this.host = endpoint[1];
        this.isPlain = settings.get('usedevelopmentemulator')?.toLowerCase() === 'true';
        this.port = Number(endpoint[2] ?? (this.isPlain ? 5672 : 5671));
        this.webPort = Number(endpoint[2] ?? (this.isPlain ? 5300 : 443));
        this.trust = certificate ? { ca: certificate } : {};
        this.agent = new (this.isPlain ? http : https).Agent({ keepAlive: true, ...this.trust });
    }

    /** Returns a connection for AMQP; what is written to it waits until it stands. */
    dial(connected = () => {}) {
        const { host, port } = this;
        const options = { host, port, noDelay: true };
        const socket = this.isPlain
            ? net.connect(options, connected)
            : tls.connect({ ...options, servername: host, ...this.trust }, connected);
        return socket;
    }

    /** Returns a token for a path, valid until then in seconds since 1970. */
    sign(path, expiry) {
        const resource = encodeURIComponent(`sb://${this.host}/${path}`.toLowerCase());
        const mac = createHmac('sha256', this.key).update(`${resource}\n${expiry}`).digest('base64');
        const [signature, name] = [encodeURIComponent(mac), encodeURIComponent(this.keyName)];
        return `SharedAccessSignature sr=${resource}&sig=${signature}&se=${expiry}&skn=${name}`;
    }

    /** Sends a request to the management API; resolves to status, headers and text. `null` stands for no token. */
    ask(method, path, { headers = {}, body = '', token = this.sign('', inAnHour()) } = {}) {
        const options = {
            host: this.host,
            port: this.webPort,
            method,
            path,
            agent: this.agent,
            headers: { ...headers, host: this.host, authorization: token, 'content-length': Buffer.byteLength(body) },
        };
        if (token === null) delete options.headers.authorization;
        return new Promise((resolve, reject) => {
            const request = (this.isPlain ? http : https).request(options, async (response) => {
                const parts = [];
                response.on('error', reject);
                for await (const part of response) parts.push(part);
                resolve({ status: response.statusCode, headers: response.headers, text: Buffer.concat(parts).toString() });
            });
            request.on('error', reject);
            request.end(body);
        });
    }
}

function setting(text) {
    const at = text.indexOf('=');
    return [text.slice(0, at).trim().toLowerCase(), text.slice(at + 1).trim()];
}

const inAnHour = () => Math.ceil(Date.now() / 1000) + 3600;

module.exports = { Target, inAnHour };
