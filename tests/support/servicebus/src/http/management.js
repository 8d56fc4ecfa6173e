'use strict';
// The management API over HTTP: queues, their settings and counts.

const atom = require('./atom.js');
const { readBody } = require('./body.js');
const { ServiceError, entityNotFound, unauthorized } = require('../errors.js');

const LIST = '$resources/queues';
const NAMESPACE = '$namespaceinfo';

class Management {
    constructor({ namespace, faults, tokens, clock, options }) {
        Object.assign(this, { namespace, faults, tokens, clock, options });
        this.created = clock.now();
    }

    /** Serves a request of HTTP. */
    async serve(request, response) {
        const reply = (status, xml) => send(response, status, xml);
        const refuse = (error) => {
            if (!(error instanceof ServiceError)) console.error(error);
            const status = error.status ?? 500;
            reply(status, atom.error(status, error.description ?? error.message));
        };
        try {
            const body = (await readBody(request)).toString();
            const url = new URL(request.url, `http://${request.headers.host}`);
            const path = decodeURIComponent(url.pathname.slice(1)).replace(/\/$/, '');
            const operation = `http-${request.method.toLowerCase()}`;
            const connection = { socket: request.socket, close: () => request.socket.destroy() };
            const link = { connection, session: connection, close: connection.close };
            const call = { operation, group: 'http', entity: path, link, refuse };
            let show = (xml) => xml;
            call.page = (status, page) => sendText(response, status, 'text/html', page);
            call.miscount = () => (show = atom.miscounted);
            call.undate = () => (response.sendDate = false);
            this.faults.run(call, () => {
                this.authorize(request);
                const xml = show(this.route(request, path, url, body));
                return () => reply(request.method === 'PUT' && !request.headers['if-match'] ? 201 : 200, xml);
            });
        } catch (error) {
            refuse(error);
        }
    }

    authorize({ headers }) {
        const token = headers.authorization ?? headers.servicebusauthorization;
        if (token === undefined && this.tokens.checks) throw unauthorized('MissingToken: The authorization header was not found.');
        if (token !== undefined) this.tokens.validity(token.replace(/^Bearer /, ''));
    }

    route(request, path, url, body) {
        const base = `${url.protocol}//${url.host}`;
        if (request.method === 'GET') return this.get(path, url, base);
        if (path === '' || path.startsWith('$')) throw entityNotFound(path);
        if (request.method === 'PUT') {
            const values = atom.read(body);
            const queue = request.headers['if-match']
                ? this.namespace.update(path, values)
                : this.namespace.create(path, values);
            return atom.entry(queue, base);
        }
        if (request.method === 'DELETE') {
            this.namespace.remove(path);
            return '';
        }
        throw new ServiceError('amqp:not-implemented', `${request.method} is not implemented.`, 405);
    }

    get(path, url, base) {
        const { name, sku } = this.options;
        if (path.toLowerCase() === NAMESPACE) return atom.namespace({ name, sku, created: this.created }, base);
        if (path.toLowerCase() === LIST) {
            const skip = Number(url.searchParams.get('$skip') ?? 0);
            const top = Number(url.searchParams.get('$top') ?? 100);
            const queues = [...this.namespace.queues.values()].slice(skip, skip + top);
            return atom.feed('Queues', base, queues.map((queue) => atom.entry(queue, base)));
        }
        const queue = this.namespace.queues.get(path.toLowerCase());
        // The service answers an unknown name with an empty feed.
        return queue ? atom.entry(queue, base) : atom.feed('Publicly Listed Services', base, []);
    }
}

function send(response, status, xml) {
    const declared = xml && `<?xml version="1.0" encoding="utf-8"?>${xml}`;
    sendText(response, status, 'application/atom+xml;type=entry;charset=utf-8', declared);
}

function sendText(response, status, type, text) {
    response.writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(text) });
    response.end(text);
}

module.exports = { Management };
