//! The connections that carry the links of sessions.
//!
//! They are apart from those of other links, because an attach that waits for a session keeps other links of its connection from being
//! attached.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::amqp::Links;
use super::super::amqp::session::Accepted;
use super::super::error::Fault;
use jobqueue_storage::sync::lock;

/// The most links of one connection. The service allows 256.
const MOST_LINKS: usize = 200;

/// The connections for the sessions of a queue.
#[derive(Debug)]
pub(super) struct Lines {
    links: Arc<Links>,
    open: Mutex<Vec<Arc<Links>>>,
}

/// An accepted session, and the connection that carries its link.
#[derive(Debug)]
pub(super) struct OnLine {
    pub(super) accepted: Accepted,
    /// Counts the link as long as it lives.
    pub(super) line: Arc<Links>,
}

impl Lines {
    /// Returns lines that are opened like `links`.
    pub(super) fn new(links: Arc<Links>) -> Self {
        Self { links, open: Mutex::default() }
    }

    /// Waits for the next free session of a queue, up to `wait`.
    pub(super) async fn accept(&self, queue: &str, wait: Duration) -> Result<OnLine, Fault> {
        let line = self.line();
        let accepted = line.accept_session(queue, wait).await?;
        Ok(OnLine { accepted, line })
    }

    /// Returns a connection with room for a link; drops all but one of the unused connections.
    fn line(&self) -> Arc<Links> {
        let mut open = lock(&self.open);
        let mut has_empty = false;
        open.retain(|line| Arc::strong_count(line) > 1 || !std::mem::replace(&mut has_empty, true));
        if let Some(line) = open.iter().find(|line| Arc::strong_count(line) <= MOST_LINKS) {
            return Arc::clone(line);
        }
        let line = Arc::new(self.links.again());
        open.push(Arc::clone(&line));
        line
    }
}
