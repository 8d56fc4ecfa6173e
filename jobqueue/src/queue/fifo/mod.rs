//! Order among the messages of a key, kept beside the queue, which promises none.
//!
//! ```text
//! send:    put message ──► join the line ──► acknowledged
//! worker:  lease message ──► first of its key? ── no ──► wait, or put back
//!                                  │ yes
//!                                  ▼
//!                               handler ──► done: leave the line ──► delete message
//!                                       └─► dead letter: leave the line ──► move message
//! cancel:  mark the place ──► delete message ──► leave the line; died in between: the next of the key finishes it
//! ```
//!
//! A *line* is a blob that says who comes first: job and message of every place, in the order in which their sends were
//! acknowledged. It is only ever changed on condition that nobody else has changed it since it was read. A message that
//! nobody has put into its line (its sender died before it was acknowledged, or it was redriven) joins it at the end when it
//! is first delivered. Keys share [a fixed number of lines](line::LINES) a queue, so that old keys leave nothing behind.
//!
//! Knows the lines; what is done around deliveries stands in `coordination::order`.

mod cancel;
mod line;
mod lines;

use super::errors::send_error;
use super::leased_job::LeasedJob;
use super::queue_core::QueueCore;
use crate::envelope::Envelope;
use crate::error::{Error, ErrorKind};
use crate::storage::{Certainty, ExpiredReceipt, MessageRef};

pub(crate) use cancel::finish_cancellation;
pub(crate) use line::{Standing, Ticket};
pub(crate) use lines::Lines;

/// The attribute of events that keep to the order of their key.
pub(crate) const HEADER: &str = "inorder";

impl QueueCore {
    fn lines(&self) -> Lines<'_> {
        Lines::new(self.storage.blobs(), &self.name)
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
        match self.store().delete(&self.name, message, ExpiredReceipt::Allow).await {
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

    /// The queue was cleared.
    pub(super) async fn clear_lines(&self) -> Result<(), Error> {
        self.lines().clear().await.map_err(|error| send_error(error, Certainty::NotApplied))
    }
}

/// For messages that are received by hand, in whatever order: the next of the key is not to wait for them for ever.
impl LeasedJob {
    /// The job is done: its turn ends, if it keeps to an order.
    pub(super) async fn end_turn(&self) -> Result<(), Error> {
        self.out_of_line(true).await
    }

    /// The message is to be moved elsewhere: it gives up its place, if it keeps to an order.
    pub(super) async fn give_up_turn(&self) -> Result<(), Error> {
        self.out_of_line(false).await
    }

    async fn out_of_line(&self, done: bool) -> Result<(), Error> {
        let in_order = |envelope: &Envelope| {
            let key = envelope.subject.clone().filter(|_| envelope.extensions.contains_key(HEADER))?;
            Some((key, envelope.id.clone()))
        };
        let Some((key, job)) = self.with_envelope(in_order).flatten() else { return Ok(()) };
        let message = self.lease.message_id();
        let ticket = Ticket { key: &key, job: &job, message: message.as_str(), delivery: self.dequeue_count };
        let lines = self.core.lines();
        let has_turn = if done { lines.finish(&ticket).await? } else { lines.leave(&ticket).await? };
        has_turn.then_some(()).ok_or_else(superseded)
    }
}

/// What a former delivery is told.
pub(crate) fn superseded() -> Error {
    Error::new(ErrorKind::LeaseLost, "a newer delivery of this message has its turn")
}
