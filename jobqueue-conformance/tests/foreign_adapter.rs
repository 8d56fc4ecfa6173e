//! An adapter outside of jobqueue that writes only the methods that it must, and runs the suite.
//!
//! It keeps its messages in another storage and gives the queues other names: enough to show what an adapter has to
//! write, and that the provided methods of the port keep the promises.

use std::sync::Arc;

use async_trait::async_trait;
use jobqueue::storage::{
    Created, ExpiredReceipt, GetMessages, MessageRef, PeekedMessage, PutMessage, PutOutcome, QueueProperties,
    QueueStore, Received, StoreError, StoreErrorKind, UpdateMessage, Updated,
};
use jobqueue::{ManualClock, Metadata, QueueName, Storage, memory};
use jobqueue_conformance::{Deviation, Subject, exercise};

const PREFIX: &str = "tenant-7-";

/// Queues whose names begin with a prefix in the storage below.
#[derive(Debug)]
struct Prefixed(Arc<dyn QueueStore>);

/// Returns the name below; in errors the caller reads his own.
fn below(queue: &QueueName) -> Result<QueueName, StoreError> {
    QueueName::new(format!("{PREFIX}{queue}")).map_err(|error| {
        StoreError::new(StoreErrorKind::InvalidInput, "name queue", queue).with_source(error)
    })
}

#[async_trait]
impl QueueStore for Prefixed {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.0.create_queue(&below(queue)?, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.0.delete_queue(&below(queue)?).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        let found = self.0.list_queues(&format!("{PREFIX}{prefix}")).await?;
        Ok(found.iter().filter_map(|name| name.as_str().strip_prefix(PREFIX)?.parse().ok()).collect())
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.0.queue_properties(&below(queue)?).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.0.set_queue_metadata(&below(queue)?, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.0.put(&below(queue)?, message).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.0.get(&below(queue)?, options).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.0.peek(&below(queue)?, count).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        self.0.update(&below(queue)?, message, change).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.0.delete(&below(queue)?, message, expired).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.0.clear(&below(queue)?).await
    }

    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        Arc::new(Self(Arc::clone(&self.0).detached()))
    }

    /// Not one of those that must be written: the storage below is stricter than the port demands.
    fn checks_expiry(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn adapter_of_required_methods_keeps_every_promise() {
    let clock = Arc::new(ManualClock::new());
    let below = memory::open_with_clock(clock.clone());
    let queues = Prefixed(Arc::clone(below.queues()));
    let storage = Storage::new(Arc::new(queues), Arc::clone(below.blobs()), "prefixed");
    // No `subscribe` is written.
    let subject = Subject::virtual_time(storage, clock).deviating([Deviation::PollOnly]);
    exercise(&subject).await.assert_kept();
}

#[tokio::test]
async fn undeclared_difference_breaks_its_promises_by_name() {
    let clock = Arc::new(ManualClock::new());
    let below = memory::open_with_clock(clock.clone());
    let queues = Prefixed(Arc::clone(below.queues()));
    let storage = Storage::new(Arc::new(queues), Arc::clone(below.blobs()), "prefixed");
    let report = exercise(&Subject::virtual_time(storage, clock)).await;
    assert!(!report.broken().is_empty());
    assert!(report.broken().iter().all(|(name, _)| name.starts_with("subscribe::")), "{report}");
}
