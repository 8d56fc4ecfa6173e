//! Opens sockets, with TLS where the namespace has it, and through WebSocket if that is wanted.

use std::fmt;
use std::io;
use std::sync::Arc;

use fe2o3_amqp_ws::WebSocketStream;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::super::connection_string::Namespace;
use super::super::tls::Trust;

/// The path at which the service takes AMQP through WebSocket.
const WEB_SOCKET: &str = "/$servicebus/websocket";

/// A socket, with or without TLS.
pub trait Socket: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Socket for S {}

/// Connects to a namespace.
pub(super) async fn open(namespace: &Namespace, trust: &Trust) -> io::Result<Box<dyn Socket>> {
    #[cfg(feature = "testing")]
    if let Some(network) = &namespace.network {
        return network.connect();
    }
    let (host, port) = (namespace.host.as_str(), namespace.amqp_port());
    let socket = TcpStream::connect((host, port)).await?;
    socket.set_nodelay(true)?;
    if !namespace.tls {
        return if namespace.web_socket {
            upgraded("ws", host, port, socket).await
        } else {
            Ok(Box::new(socket))
        };
    }
    let config = trust.config().await?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    let socket = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
    if namespace.web_socket { upgraded("wss", host, port, socket).await } else { Ok(Box::new(socket)) }
}

/// Turns a connection into one of WebSocket.
async fn upgraded(
    scheme: &str,
    host: &str,
    port: u16,
    socket: impl Socket + 'static,
) -> io::Result<Box<dyn Socket>> {
    let address = format!("{scheme}://{host}:{port}{WEB_SOCKET}");
    let stream = WebSocketStream::connect_with_stream(address, socket).await;
    Ok(Box::new(stream.map_err(io::Error::other)?))
}
