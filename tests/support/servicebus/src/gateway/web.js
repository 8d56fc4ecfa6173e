'use strict';
// The management API over HTTP, with the names of the namespace on the way there and those of the clients on the way back.

const atom = require('./atom.js');
const { Answer } = require('./answer.js');
const { error: errorBody } = require('../http/atom.js');
const { readBody } = require('../http/body.js');
const { ServiceError } = require('../errors.js');

const PAGE = 100;
const LIST = '$resources/queues';
const KEPT = ['content-type', 'if-match', 'accept'];

class Web {
    constructor({ target, names, faults, tokens, later }) {
        Object.assign(this, { target, names, faults, tokens, later });
    }

    /** Serves a request of a client. */
    serve(request, response) {
        this.later(() => this.run(request, response).catch((error) => this.fail(response, error)));
    }

    fail(response, error) {
        if (!(error instanceof ServiceError)) console.error(error);
        const status = error.status ?? 502;
        this.reply(response, { status, text: errorBody(status, error.description ?? error.message) });
    }

    async run(request, response) {
        const body = (await readBody(request)).toString();
        const url = new URL(request.url, 'http://gateway');
        const path = decodeURIComponent(url.pathname.slice(1)).replace(/\/$/, '');
        const answer = new Answer();
        const connection = { socket: request.socket, close: () => request.socket.destroy() };
        const refuse = (error) => this.fail(response, error);
        const call = {
            operation: `http-${request.method.toLowerCase()}`,
            group: 'http',
            entity: path,
            link: { connection, session: connection, close: connection.close },
            refuse,
            page: (status, text) => this.reply(response, { status, headers: { 'content-type': 'text/html' }, text }),
            undate: () => (response.sendDate = false),
            whenPerformed: (goOn) => answer.whenCome(goOn),
        };
        this.faults.run(call, () => {
            const asked = this.ask(request, { path, url, body });
            asked.then((found) => answer.come(() => this.reply(response, found)), refuse);
            return () => answer.allow();
        });
    }

    async ask({ method, headers }, { path, url, body }) {
        const given = headers.authorization ?? headers.servicebusauthorization;
        const name = path.startsWith('$') ? path : this.names.toNamespace(path);
        const token = given && this.tokens.token(name, given.replace(/^Bearer /, ''));
        const kept = KEPT.filter((header) => headers[header] !== undefined).map((header) => [header, headers[header]]);
        const options = { headers: Object.fromEntries(kept), body, token };
        if (token === undefined) options.token = null;
        if (method === 'GET' && path.toLowerCase() === LIST) return this.list(url.searchParams, options);
        const found = await this.target.ask(method, `/${encodeURI(name)}${url.search}`, options);
        return { ...found, text: this.names.toClient(found.text) };
    }

    /** Returns the page of our queues that is asked for; others may be in the namespace. */
    async list(query, options) {
        const { first, ours } = await this.queues(options);
        if (first.status !== 200) return first;
        const skip = Number(query.get('$skip') ?? 0);
        const page = ours.slice(skip, skip + Number(query.get('$top') ?? PAGE));
        return { ...first, text: this.names.toClient(atom.withEntries(first.text, page)) };
    }

    /** Returns the first page of all queues, and the entries of ours. */
    async queues(options) {
        const all = [];
        let first;
        for (let skip = 0; ; skip += PAGE) {
            const path = `/${encodeURI(LIST)}?$skip=${skip}&$top=${PAGE}&api-version=2021-05`;
            const page = await this.target.ask('GET', path, options);
            first ??= page;
            const found = page.status === 200 ? atom.entries(page.text) : [];
            all.push(...found);
            if (found.length < PAGE) break;
        }
        const prefix = this.names.prefix.toLowerCase();
        return { first, ours: all.filter(({ name }) => name.toLowerCase().startsWith(prefix)) };
    }

    reply(response, { status, headers = {}, text }) {
        this.later(() => {
            const type = headers['content-type'] ?? 'application/xml;charset=utf-8';
            response.writeHead(status, { 'content-type': type, 'content-length': Buffer.byteLength(text) });
            response.end(text);
        });
    }
}

module.exports = { Web };
