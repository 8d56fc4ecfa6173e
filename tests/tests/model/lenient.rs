//! A storage that breaks one rule: it accepts expired receipts of messages that nobody else has received.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use jobqueue::QueueName;
use jobqueue::settings::Metadata;
use jobqueue::storage::*;

/// Returns `storage` with this rule broken.
pub fn wrap(storage: &Storage) -> Storage {
    let queues = Lenient(Arc::clone(storage.queues()));
    Storage::new(Arc::new(queues), Arc::clone(storage.blobs()), "lenient")
}

#[derive(Debug)]
struct Lenient(Arc<dyn QueueStore>);

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl QueueStore for Lenient {
    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        mut change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        change.expired = ExpiredReceipt::Allow;
        self.0.update(queue, message, change).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        _: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.0.delete(queue, message, ExpiredReceipt::Allow).await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        self.0.delete_all(queue, messages, expired).await
    }

    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.0.create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.0.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.0.list_queues(prefix).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.0.queue_properties(queue).await
    }

    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.0.queue_metadata(queue).await
    }

    async fn counts_by_state(&self, queue: &QueueName) -> Result<Option<StateCounts>, StoreError> {
        self.0.counts_by_state(queue).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.0.set_queue_metadata(queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.0.put(queue, message).await
    }

    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        self.0.put_all(queue, messages).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.0.get(queue, options).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.0.peek(queue, count).await
    }

    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        self.0.dead_letter(queue, message, letter).await
    }

    fn has_dead_letter_queues(&self) -> bool {
        self.0.has_dead_letter_queues()
    }

    async fn sweep(&self, leftovers: SweepLeftovers) -> Result<SweptLeftovers, StoreError> {
        self.0.sweep(leftovers).await
    }

    fn lease_ended(&self, queue: &QueueName, message: &MessageRef) -> Option<LeaseEnded> {
        self.0.lease_ended(queue, message)
    }

    fn preparation(&self, queue: &QueueName) -> Option<Preparation> {
        self.0.preparation(queue)
    }

    async fn advice(&self, queue: &QueueName) -> Result<Vec<Advice>, StoreError> {
        self.0.advice(queue).await
    }

    async fn orders_groups(&self, queue: &QueueName) -> Result<bool, StoreError> {
        self.0.orders_groups(queue).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.0.clear(queue).await
    }

    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        self.0.check_access(queue, access).await
    }

    fn subscribe(&self, queue: &QueueName) -> Option<Subscription> {
        self.0.subscribe(queue)
    }

    fn checks_expiry(&self) -> bool {
        self.0.checks_expiry()
    }

    fn commits_together(&self) -> bool {
        self.0.commits_together()
    }

    fn throttles_by_shard(&self) -> bool {
        self.0.throttles_by_shard()
    }

    fn file(&self) -> Option<&Path> {
        self.0.file()
    }

    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        self
    }
}
