//! Order among the messages of a key, kept beside the queue, which promises none.
//!
//! ```text
//! send:    put message ──► join the line ──► acknowledged
//! worker:  lease message ──► first of its key? ── no ──► wait, or put back
//!                                  │ yes
//!                                  ▼
//!                               handler ──► done: leave the line ──► delete message
//!                                       └─► dead letter: leave the line ──► move message
//! ```
//!
//! A *line* is a blob that says who comes first: job and message of every place, in the order in which their sends were
//! acknowledged. It is only ever changed on condition that nobody else has changed it since it was read. A message that
//! nobody has put into its line (its sender died before it was acknowledged, or it was redriven) joins it at the end when it
//! is first delivered. Keys share [a fixed number of lines](line::LINES) a queue, so that old keys leave nothing behind.
//!
//! Knows the lines; what is done around deliveries stands in `coordination::order`.

mod line;
mod lines;

use super::channel::Channel;
use super::errors::send_error;
use crate::storage::{Late, MessageRef};
use crate::vocabulary::error::{Error, ErrorKind};

pub(crate) use line::{Standing, Ticket};
pub(crate) use lines::Lines;

/// The attribute of events that keep to the order of their key.
pub(crate) const HEADER: &str = "inorder";

impl Channel {
    fn lines(&self) -> Lines<'_> {
        Lines::new(&**self.storage.blobs(), &self.name)
    }

    /// Gives a message that was just stored its place. Without one the send has failed.
    pub(super) async fn join_line(&self, key: &str, job: &str, message: &MessageRef) -> Result<(), Error> {
        let ticket = Ticket { key, job, message: message.id.as_str(), delivery: 0 };
        let error = match self.lines().join(&ticket).await {
            Ok(true) => return Ok(()),
            Ok(false) => Error::new(ErrorKind::Rejected, "too many messages of this key wait for their turn")
                .with_retryable(true),
            Err(error) => error,
        };
        // Taken back if no worker has it yet.
        match self.store().delete(&self.name, message, Late::IfUnclaimed).await {
            Ok(()) => Err(Error::new(ErrorKind::Rejected, "the message could not be given its place")
                .with_retryable(error.is_retryable())
                .with_source(error)),
            Err(delete) => {
                tracing::debug!(queue = %self.name, error = %delete, "message without a place not taken back");
                let text = "the message is stored and may run out of order; send it again under the same id";
                Err(Error::new(ErrorKind::Unknown, text).with_retryable(true).with_source(error))
            }
        }
    }

    /// The message was taken back.
    pub(super) async fn leave_line(&self, key: &str, job: &str, message: &MessageRef) -> Result<(), Error> {
        let ticket = Ticket { key, job, message: message.id.as_str(), delivery: u32::MAX };
        self.lines().leave(&ticket).await.map(drop)
    }

    /// The queue was cleared.
    pub(super) async fn clear_lines(&self) -> Result<(), Error> {
        self.lines().clear().await.map_err(|error| send_error(error, false))
    }
}
