//! Opens sockets, with TLS if the namespace has it, and over WebSocket if requested.

use std::io;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::super::connection_string::Namespace;
use super::super::network::Socket;
use super::super::tls::Trust;
use super::web_socket;

pub(super) async fn open(namespace: &Namespace, trust: &Trust) -> io::Result<Box<dyn Socket>> {
    if let Some(network) = &namespace.network {
        return network.connect();
    }
    let (host, port) = (namespace.host.as_str(), namespace.amqp_port());
    let socket = TcpStream::connect((namespace.address(), port)).await?;
    socket.set_nodelay(true)?;
    if !namespace.tls {
        return if namespace.web_socket {
            Ok(Box::new(web_socket::upgrade("ws", host, port, socket).await?))
        } else {
            Ok(Box::new(socket))
        };
    }
    let config = trust.config().await?;
    let name = ServerName::try_from(namespace.address().to_owned()).map_err(io::Error::other)?;
    let socket = TlsConnector::from(Arc::new(config)).connect(name, socket).await?;
    if namespace.web_socket {
        Ok(Box::new(web_socket::upgrade("wss", host, port, socket).await?))
    } else {
        Ok(Box::new(socket))
    }
}
