//! The network of a simulation, which stands in for sockets.

use std::fmt;
use std::io;

use tokio::io::{AsyncRead, AsyncWrite};

/// A socket, with or without TLS.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Socket for S {}

/// A request of the management API.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Request<'r> {
    /// The method of HTTP.
    pub method: &'r str,
    /// The path and the query.
    pub target: &'r str,
    /// The value of the header `authorization`.
    pub token: &'r str,
    /// The document, if it has one.
    pub body: Option<&'r str>,
}

/// The answer to a request of the management API.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// The status of HTTP.
    pub status: u16,
    /// The document.
    pub body: Vec<u8>,
}

/// Carries the bytes to a namespace in a simulation, where real sockets would not agree with virtual time.
pub trait Network: fmt::Debug + Send + Sync {
    /// Opens a connection for AMQP.
    ///
    /// # Errors
    /// When there is no namespace.
    fn connect(&self) -> io::Result<Box<dyn Socket>>;

    /// Sends a request and returns its answer. No virtual time passes meanwhile.
    ///
    /// # Errors
    /// When the request was not sent.
    fn request(&self, request: &Request<'_>) -> io::Result<Answer>;
}

jobqueue_storage::debug_fields! {
    /// Shows no token.
    Request<'a> { method, target }
    Answer { status }
}
