//! Promises about creating and deleting queues.

use crate::prelude::*;
use jobqueue::QueueName;
use jobqueue::storage::Created;

promises! { "create";
    /// Creating a missing queue makes an empty queue.
    async fn makes_a_missing_queue(subject, queue: missing_queue) {
        ensure_eq!(queue.store.create_queue(&queue.name, &Metadata::new()).await?, Created::New, "first");
        ensure_eq!(queue.count().await?, 0, "messages in a new queue");
    }

    /// Creating a queue again with the same metadata changes nothing.
    async fn is_repeatable_with_the_same_metadata(subject, queue: missing_queue) {
        let metadata = Metadata::new().with("poisonthreshold", "3");
        queue.store.create_queue(&queue.name, &metadata).await?;
        queue.put("kept").await?;
        ensure_eq!(queue.store.create_queue(&queue.name, &metadata).await?, Created::Existed, "second");
        ensure_eq!(queue.count().await?, 1, "messages");
    }

    /// Creating a queue that exists with other metadata is refused, and leaves metadata and messages alone.
    async fn refuses_other_metadata(subject, queue: missing_queue) {
        let metadata = Metadata::new().with("a", "1");
        queue.store.create_queue(&queue.name, &metadata).await?;
        queue.put("kept").await?;
        for other in [Metadata::new(), Metadata::new().with("a", "2"), Metadata::new().with("b", "1")] {
            refused(queue.store.create_queue(&queue.name, &other).await, &[K::QueueAlreadyExists])?;
        }
        let properties = queue.store.queue_properties(&queue.name).await?;
        ensure_eq!(properties.metadata, metadata, "metadata");
        ensure_eq!(properties.approximate_count, 1, "messages");
    }

    /// If many processes create a queue at once, all succeed, and exactly one makes it.
    async fn by_many_at_once_succeeds(subject, queue: missing_queue) {
        let metadata = Metadata::new();
        let creations = (0..10).map(|_| queue.store.create_queue(&queue.name, &metadata));
        let created: Vec<_> = join_all(creations).await.into_iter().collect::<Result<_, _>>()?;
        ensure_eq!(created.iter().filter(|created| **created == Created::New).count(), 1, "creations");
    }

    /// A name of 63 characters is accepted.
    async fn takes_the_longest_name(subject) {
        let name = format!("{:q<63}", subject.queue_name()?.as_str());
        let name = QueueName::new(name).map_err(|error| Broken::new(error.to_string()))?;
        subject.storage().queues().create_queue(&name, &Metadata::new()).await?;
        let queue = TestQueue::new(subject.storage(), name);
        queue.put("text").await?;
        ensure_eq!(queue.count().await?, 1, "messages");
    }

    /// Deleting a queue deletes its messages: a new queue of the same name is empty.
    async fn after_a_deletion_is_empty(subject, queue) {
        queue.put("old").await?;
        queue.store.delete_queue(&queue.name).await?;
        match queue.store.create_queue(&queue.name, &Metadata::new()).await {
            Ok(created) => {
                ensure_eq!(created, Created::New, "creation");
                ensure_eq!(queue.count().await?, 0, "messages");
            }
            // Azure takes a while to remove a queue.
            Err(error) => ensure_eq!(error.kind(), K::QueueBeingDeleted, "creation"),
        }
    }

    /// Deleting a queue leaves other queues alone.
    async fn and_deletion_concern_one_queue(subject) {
        let (one, other) = (subject.queue().await?, subject.queue().await?);
        other.put("kept").await?;
        one.store.delete_queue(&one.name).await?;
        ensure_eq!(other.count().await?, 1, "messages of the other queue");
    }
}
