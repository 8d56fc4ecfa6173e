//! The delivery count that a copy takes over from the message that it replaces.
//!
//! Any sender can set any property, so the count carries a seal over the queue, the message id, the count and
//! the content. A seal is valid only for a message that the framework wrote.

use super::super::place::Place;
use super::super::texts::QueueBlobs;
use super::body::MessageBody;
use super::message::{Content, Outgoing, Replaced};
use jobqueue_storage::{QueueName, StoreError, log};

/// Returns the seal of a copy.
///
/// # Errors
/// The errors of the blob storage. Nothing was sent.
pub(super) async fn seal(
    queue_blobs: &QueueBlobs,
    queue: &QueueName,
    copy: &Outgoing<'_>,
) -> Result<String, StoreError> {
    let count = copy.dequeued.to_string();
    let sealed = queue_blobs.seal(&parts(queue, copy.id, &count, &copy.content.bytes())).await;
    sealed.map_err(|error| error.with_ambiguous(false))
}

/// Adds the deliveries of the replaced messages to the message's own, if their seal is valid.
///
/// # Errors
/// The errors of the blob storage. Nothing was added.
pub(super) async fn count(
    queue_blobs: &QueueBlobs,
    queue: &QueueName,
    content: &mut Content,
) -> Result<(), StoreError> {
    let Some(Replaced { dequeued, seal }) = content.replaced.take() else { return Ok(()) };
    let Some(copied) = MessageBody::of(&content.text, content.other.as_deref()) else { return Ok(()) };
    let (count, bytes) = (dequeued.to_string(), copied.bytes());
    if queue_blobs.is_sealed(&parts(queue, content.id.as_str(), &count, &bytes), &seal).await? {
        content.delivered = content.delivered.saturating_add(dequeued);
    } else {
        log::warn!(%queue, message = %content.id, "a message claims deliveries that did not take place; they are not counted");
    }
    Ok(())
}

fn parts<'p>(queue: &'p QueueName, id: &'p str, count: &'p str, content: &'p [u8]) -> [&'p [u8]; 4] {
    // A dead letter keeps the seal of the queue that it comes from.
    [Place::of(queue).queue.as_bytes(), id.as_bytes(), count.as_bytes(), content]
}
