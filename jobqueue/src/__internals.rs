//! The inside of this crate for `jobqueue-testing`, the models and the benchmarks of this repository, which have its version.
//! Nothing here is promised to others.

use crate::error::Error;
use crate::message::QueueMessage;
use crate::queue::{Queue, SendOptions};
use crate::send::{Purpose, prepare};

pub use crate::handler::erased::{is_outage, is_snooze};

/// Returns the text that [`Queue::send`] would store: validated, encoded, in an event with a new id.
///
/// # Errors
/// Those of [`Queue::send`], except for the storage's.
pub fn text_of<M: QueueMessage>(queue: &Queue<M>, message: &M) -> Result<String, Error> {
    Ok(prepare(queue.core(), message, SendOptions::new(), Purpose::Check)?.put.text)
}

/// Returns the message in a text of the queue, decoded and validated. Asks the storage only if the payload is in a
/// blob.
///
/// # Errors
/// The error of the text or the payload.
pub async fn read_text<M: QueueMessage>(queue: &Queue<M>, text: &str) -> Result<M, Error> {
    crate::receive::read_text(queue.core(), text).await
}
