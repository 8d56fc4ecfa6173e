//! The network of a simulation, which replaces sockets.

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
    /// The HTTP method.
    pub method: &'r str,
    /// The path with the query.
    pub target: &'r str,
    /// The value of the header `authorization`.
    pub token: &'r str,
    /// The request body; `None` for a request without one.
    pub body: Option<&'r str>,
}

/// The answer to a request of the management API.
#[derive(Clone, PartialEq, Eq)]
pub struct Answer {
    /// The HTTP status.
    pub status: u16,
    /// The response body.
    pub body: Vec<u8>,
}

/// Carries the bytes to a namespace in a simulation. Real sockets would not follow virtual time.
pub trait Network: fmt::Debug + Send + Sync {
    /// Opens a connection for AMQP.
    ///
    /// # Errors
    /// If there is no namespace.
    fn connect(&self) -> io::Result<Box<dyn Socket>>;

    /// Sends a request and returns its answer. No virtual time passes during the call.
    ///
    /// # Errors
    /// If the request was not sent.
    fn request(&self, request: &Request<'_>) -> io::Result<Answer>;
}

jobqueue_storage::debug_fields! {
    /// Does not show the token.
    Request<'a> { method, target }
    Answer { status }
}
