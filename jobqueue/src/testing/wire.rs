//! The text of a message as it stands in a queue, without storing it: for tests of formats and for benchmarks.

use crate::error::Error;
use crate::message::QueueMessage;
use crate::queue::{Queue, SendOptions};

/// The text that [`Queue::send`] would store: validated, encoded, in an event with a new id.
///
/// # Errors
/// As [`Queue::send`], but for the storage's.
pub fn text_of<M: QueueMessage>(queue: &Queue<M>, message: &M) -> Result<String, Error> {
    Ok(queue.core().prepare(message, SendOptions::new())?.put.text)
}

/// The message in a text of the queue, decoded and validated. Asks the storage only if the payload is in a blob.
///
/// # Errors
/// Says what is wrong with the text or the payload.
///
/// # Cancel safety
/// It only reads.
pub async fn read<M: QueueMessage>(queue: &Queue<M>, text: &str) -> Result<M, Error> {
    queue.core().read(text).await
}
