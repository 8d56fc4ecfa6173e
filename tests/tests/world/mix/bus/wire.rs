//! The connections of a process, as its AMQP client sees them.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use jobqueue::servicebus::{Answer, Network, Request, Socket};
use jobqueue_testing::world::Host;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::hub::Hub;

/// The network of one process.
pub(super) struct Line {
    pub(super) hub: Arc<Hub>,
    pub(super) host: Host,
}

impl Network for Line {
    fn connect(&self) -> io::Result<Box<dyn Socket>> {
        let number = self.hub.connect(&self.host);
        Ok(Box::new(Wire { hub: Arc::clone(&self.hub), number }))
    }

    fn request(&self, request: &Request<'_>) -> io::Result<Answer> {
        Ok(self.hub.request(request))
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Line").field(&self.host.name).finish()
    }
}

/// A connection. Dropping it closes it.
struct Wire {
    hub: Arc<Hub>,
    number: u32,
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes = ready!(self.hub.read(self.number, buffer.remaining(), context));
        buffer.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(if self.hub.write(self.number, bytes) {
            Ok(bytes.len())
        } else {
            Err(io::ErrorKind::BrokenPipe.into())
        })
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.hub.close(self.number);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        self.hub.close(self.number);
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wire").field(&self.number).finish()
    }
}
