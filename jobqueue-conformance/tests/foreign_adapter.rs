//! An adapter outside of jobqueue that writes only the methods that it must, and runs the suite.
//!
//! It keeps its messages in another storage: enough to show what an adapter has to write, and that the provided methods
//! of the port keep the promises.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use jobqueue::clock::ManualClock;
use jobqueue::settings::Metadata;
use jobqueue::storage::{
    Created, ExpiredReceipt, GetMessages, MessageRef, PeekedMessage, PutMessage, PutOutcome, QueueProperties,
    QueueStore, Received, StoreError, UpdateMessage, Updated,
};
use jobqueue::{QueueName, Storage, memory};
use jobqueue_conformance::{Deviation, Subject, exercise};

/// Queues that count the requests to the storage below, as an account's bill does.
#[derive(Debug)]
struct Billed {
    below: Arc<dyn QueueStore>,
    requests: Arc<AtomicU64>,
}

impl Billed {
    fn new(below: &Storage) -> Self {
        Self { below: Arc::clone(below.queues()), requests: Arc::default() }
    }

    fn request(&self) -> &dyn QueueStore {
        self.requests.fetch_add(1, Ordering::Relaxed);
        &*self.below
    }
}

#[async_trait]
impl QueueStore for Billed {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.request().create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.request().delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.request().list_queues(prefix).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.request().queue_properties(queue).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.request().set_queue_metadata(queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.request().put(queue, message).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.request().get(queue, options).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.request().peek(queue, count).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        self.request().update(queue, message, change).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.request().delete(queue, message, expired).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.request().clear(queue).await
    }

    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        Arc::new(Self { below: Arc::clone(&self.below).detached(), requests: Arc::clone(&self.requests) })
    }

    /// Not one of those that must be written: the storage below is stricter than the port demands.
    fn checks_expiry(&self) -> bool {
        true
    }
}

fn subject() -> Subject {
    let clock = Arc::new(ManualClock::new());
    let below = memory::open_with_clock(clock.clone());
    let storage = Storage::new(Arc::new(Billed::new(&below)), Arc::clone(below.blobs()), "billed");
    Subject::virtual_time(storage, clock)
}

#[tokio::test]
async fn adapter_of_required_methods_keeps_every_promise() {
    // It does not write `subscribe`.
    exercise(&subject().deviating([Deviation::PollOnly])).await.assert_kept();
}

#[tokio::test]
async fn undeclared_difference_breaks_its_promises_by_name() {
    let report = exercise(&subject()).await;
    assert!(!report.broken().is_empty());
    assert!(report.broken().iter().all(|(name, _)| name.starts_with("subscriptions::")), "{report}");
}
