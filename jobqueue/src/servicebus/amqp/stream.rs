//! Opens sockets, with TLS where the namespace has it.

use std::fmt;
use std::io;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::super::tls::Trust;

/// A socket, with or without TLS.
pub(super) trait Socket: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + fmt::Debug + Send + Unpin> Socket for S {}

/// Connects to `host`, with TLS if `trust` is given.
pub(super) async fn open(host: &str, port: u16, trust: Option<&Trust>) -> io::Result<Box<dyn Socket>> {
    let socket = TcpStream::connect((host, port)).await?;
    socket.set_nodelay(true)?;
    let Some(trust) = trust else { return Ok(Box::new(socket)) };
    let config = trust.config().await?;
    let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
    Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, socket).await?))
}
