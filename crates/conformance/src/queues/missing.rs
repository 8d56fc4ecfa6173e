//! Promises about operations on queues that do not exist.

use crate::prelude::*;

/// Returns a message reference of the form that the storage itself uses.
async fn some_message(subject: &Subject) -> Result<MessageRef, Broken> {
    Ok(subject.queue().await?.put("elsewhere").await?.message)
}

async fn every_message_operation_is_refused(
    queue: &TestQueue,
    message: &MessageRef,
    kinds: &[K],
) -> Result<(), Broken> {
    refused(queue.put("text").await, kinds)?;
    refused(queue.get(1, LONG_TIMEOUT).await, kinds)?;
    refused(queue.peek(1).await, kinds)?;
    refused(queue.update(message, LONG_TIMEOUT).await, kinds)?;
    refused(queue.delete(message).await, kinds)?;
    refused(queue.store.clear(&queue.name).await, kinds)
}

promises! { "missing";
    /// In a queue that does not exist, messages can be neither put, received, peeked at, changed nor cleared.
    async fn queue_has_no_messages(subject) {
        let message = some_message(subject).await?;
        let queue = subject.missing_queue().await?;
        every_message_operation_is_refused(&queue, &message, &[K::QueueNotFound]).await?;
    }

    /// A queue that does not exist has no properties, cannot be given metadata, and cannot be deleted.
    async fn queue_has_no_properties(subject, queue: missing_queue) {
        refused(queue.count().await, &[K::QueueNotFound])?;
        refused(queue.store.queue_metadata(&queue.name).await, &[K::QueueNotFound])?;
        let metadata = Metadata::new().with("a", "1");
        refused(queue.store.set_queue_metadata(&queue.name, &metadata).await, &[K::QueueNotFound])?;
        let replaced = queue.store.replace_queue_metadata(&queue.name, &Metadata::new(), &metadata).await;
        refused(replaced, &[K::QueueNotFound])?;
        refused(queue.store.delete_queue(&queue.name).await, &[K::QueueNotFound])?;
    }

    /// Each message of a list for a queue that does not exist is refused.
    async fn queue_refuses_each_of_a_batch(subject) {
        let message = some_message(subject).await?;
        let queue = subject.missing_queue().await?;
        let puts = queue.store.put_all(&queue.name, [PutMessage::new("a"), PutMessage::new("b")].into()).await;
        ensure_eq!(puts.len(), 2, "answers to two messages");
        for put in puts {
            refused(put, &[K::QueueNotFound])?;
        }
        for delete in queue.store.delete_all(&queue.name, vec![message], ExpiredReceipt::Refuse).await {
            refused(delete, &[K::QueueNotFound])?;
        }
    }

    /// A deleted queue behaves like a queue that never existed, or is reported as being deleted.
    async fn queue_is_what_a_deleted_one_becomes(subject, queue) {
        let message = queue.put("gone").await?.message;
        queue.store.delete_queue(&queue.name).await?;
        let kinds = &[K::QueueNotFound, K::QueueBeingDeleted];
        every_message_operation_is_refused(&queue, &message, kinds).await?;
        refused(queue.count().await, kinds)?;
    }
}
