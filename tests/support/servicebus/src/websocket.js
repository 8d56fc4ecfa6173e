'use strict';
// AMQP over WebSocket, at the path that the service uses.

const { WebSocketServer, createWebSocketStream } = require('ws');

const PATH = '/$servicebus/websocket';

/** Serves AMQP to clients that upgrade a connection of the HTTP server. */
function serve(web, broker) {
    const protocols = (offered) => (offered.has('amqp') ? 'amqp' : [...offered][0]);
    const server = new WebSocketServer({ noServer: true, handleProtocols: protocols });
    web.on('upgrade', (request, socket, head) => {
        if (request.url.split('?')[0].replace(/\/$/, '').toLowerCase() !== PATH) {
            socket.destroy();
            return;
        }
        server.handleUpgrade(request, socket, head, (client) => broker.accept(createWebSocketStream(client)));
    });
}

module.exports = { serve };
