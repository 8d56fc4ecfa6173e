'use strict';
// The sockets: AMQP and HTTP share a port and are told apart by their first bytes.

const http = require('node:http');
const net = require('node:net');
const tls = require('node:tls');
const websocket = require('./websocket.js');

const AMQP = 'AMQP';

class Listeners {
    constructor() {
        this.servers = [];
        this.sockets = new Set();
    }

    /** Opens a port for AMQP and HTTP, with TLS when there is a certificate; resolves to its number. */
    shared({ port, host, certificate, broker, management, faults }) {
        const web = http.createServer((request, response) => management.serve(request, response));
        web.on('clientError', (_, socket) => socket.destroy());
        websocket.serve(web, broker);
        const serve = (socket) => {
            this.keep(socket);
            admit(faults, socket, () => sort(socket, broker, web));
        };
        const server = certificate
            ? tls.createServer({ ...certificate, noDelay: true }, serve)
            : net.createServer({ noDelay: true }, serve);
        server.on('tlsClientError', () => {});
        return this.listen(server, port, host);
    }

    /** Opens a port for HTTP only. */
    web({ port, host, serve }) {
        return this.listen(http.createServer(serve), port, host);
    }

    listen(server, port, host) {
        this.servers.push(server);
        return new Promise((resolve, reject) => {
            server.once('error', reject);
            server.listen({ port, host }, () => resolve(server.address().port));
        });
    }

    keep(socket) {
        this.sockets.add(socket);
        socket.on('error', () => {});
        socket.on('close', () => this.sockets.delete(socket));
    }

    async close() {
        const closed = this.servers.map((server) => new Promise((resolve) => server.close(resolve)));
        for (const server of this.servers) server.closeAllConnections?.();
        for (const socket of this.sockets) socket.destroy();
        await Promise.all(closed);
    }
}

/** Runs the arrival of a connection through the faults. */
function admit(faults, socket, go) {
    const refuse = () => socket.destroy();
    const connection = { socket, close: refuse };
    const link = { connection, session: connection, close: refuse };
    faults.run({ operation: 'connect', link, refuse }, () => go);
}

function sort(socket, broker, web) {
    socket.once('data', (head) => {
        socket.pause();
        socket.unshift(head);
        if (head.subarray(0, AMQP.length).toString('latin1') === AMQP) broker.accept(socket);
        else web.emit('connection', socket);
        process.nextTick(() => socket.resume());
    });
}

module.exports = { Listeners };
