//! Promises about clearing queues.

use crate::prelude::*;

promises! { "clear";
    /// Clearing a queue removes visible, leased and delayed messages.
    async fn removes_all_messages(subject, queue) {
        queue.put_and_get("leased", LONG_TIMEOUT).await?;
        queue.put("visible").await?;
        queue.put_with(PutMessage::new("delayed").with_visibility_delay(LONG_TIMEOUT)).await?;
        queue.store.clear(&queue.name).await?;
        ensure_eq!(queue.count().await?, 0, "messages");
        ensure!(queue.get(32, LONG_TIMEOUT).await?.is_empty(), "a message is left");
    }

    /// Clearing a queue, even an empty one, keeps the queue and its metadata.
    async fn keeps_metadata(subject, queue) {
        let metadata = Metadata::new().with("a", "1");
        queue.store.set_queue_metadata(&queue.name, &metadata).await?;
        queue.store.clear(&queue.name).await?;
        ensure_eq!(queue.store.queue_properties(&queue.name).await?.metadata, metadata, "metadata");
        queue.put("new").await?;
        queue.get_one(LONG_TIMEOUT).await?;
    }

    /// Clearing a queue invalidates all receipts.
    async fn ends_receipts(subject, queue) {
        let message = queue.put_and_get("text", LONG_TIMEOUT).await?.message;
        queue.store.clear(&queue.name).await?;
        refused(queue.delete(&message).await, &[K::MessageNotFound])?;
    }

    /// Clearing a queue leaves other queues alone.
    async fn concerns_one_queue(subject) {
        let (one, other) = (subject.queue().await?, subject.queue().await?);
        other.put("kept").await?;
        one.store.clear(&one.name).await?;
        ensure_eq!(other.count().await?, 1, "messages of the other queue");
    }
}
