//! Converts between messages and the text in a queue, without storing it: for tests of formats and for benchmarks.

use crate::error::Error;
use crate::message::QueueMessage;
use crate::queue_core::Queue;
use crate::receive::read_text;
use crate::send::{Purpose, SendOptions};

/// Returns the text that [`Queue::send`] would store: validated, encoded, in an event with a new id.
///
/// # Errors
/// Those of [`Queue::send`], except for the storage's.
pub fn text_of<M: QueueMessage>(queue: &Queue<M>, message: &M) -> Result<String, Error> {
    Ok(crate::send::prepare(queue.core(), message, SendOptions::new(), Purpose::Check)?.put.text)
}

/// Returns the message in a text of the queue, decoded and validated. Asks the storage only if the payload is in a
/// blob.
///
/// # Errors
/// The error of the text or the payload.
///
/// # Cancel safety
/// The call only reads, so the future may be dropped at any time.
pub async fn read<M: QueueMessage>(queue: &Queue<M>, text: &str) -> Result<M, Error> {
    read_text(queue.core(), text).await
}
