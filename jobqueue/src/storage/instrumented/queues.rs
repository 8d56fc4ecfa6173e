//! Forwards the operations on queues.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::{Instrumented, Subject};
use crate::name::QueueName;
use crate::settings::metadata::Metadata;
use crate::storage::{
    Access, Advice, Created, DeadLetterMessage, ExpiredReceipt, GetMessages, LeaseEnded, MessageRef,
    Operation, PeekedMessage, Preparation, PutMessage, PutOutcome, QueueProperties, QueueStore, Received,
    StateCounts, StoreError, Subscription, SweepLeftovers, SweptLeftovers, UpdateMessage, Updated,
};

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl QueueStore for Instrumented<dyn QueueStore> {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.observe(Operation::CreateQueue, Subject::Queue(queue), self.inner.create_queue(queue, metadata))
            .await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.observe(Operation::DeleteQueue, Subject::Queue(queue), self.inner.delete_queue(queue)).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.observe(Operation::ListQueues, Subject::Other(&prefix), self.inner.list_queues(prefix)).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.observe(Operation::QueueProperties, Subject::Queue(queue), self.inner.queue_properties(queue))
            .await
    }

    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.observe(Operation::QueueMetadata, Subject::Queue(queue), self.inner.queue_metadata(queue)).await
    }

    async fn counts_by_state(&self, queue: &QueueName) -> Result<Option<StateCounts>, StoreError> {
        self.observe(Operation::QueueProperties, Subject::Queue(queue), self.inner.counts_by_state(queue))
            .await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        let answer = self.inner.set_queue_metadata(queue, metadata);
        self.observe(Operation::SetQueueMetadata, Subject::Queue(queue), answer).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.observe(Operation::Put, Subject::Queue(queue), self.inner.put(queue, message)).await
    }

    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        self.observe_all(
            Operation::PutAll,
            queue,
            self.commits_together(),
            self.inner.put_all(queue, messages),
        )
        .await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.observe(Operation::Get, Subject::Queue(queue), self.inner.get(queue, options)).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.observe(Operation::Peek, Subject::Queue(queue), self.inner.peek(queue, count)).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        self.observe(Operation::Update, Subject::Queue(queue), self.inner.update(queue, message, change))
            .await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.observe(Operation::Delete, Subject::Queue(queue), self.inner.delete(queue, message, expired))
            .await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        self.observe_all(
            Operation::DeleteAll,
            queue,
            self.commits_together(),
            self.inner.delete_all(queue, messages, expired),
        )
        .await
    }

    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        let answer = self.inner.dead_letter(queue, message, letter);
        self.observe(Operation::DeadLetter, Subject::Queue(queue), answer).await
    }

    fn has_dead_letter_queues(&self) -> bool {
        self.inner.has_dead_letter_queues()
    }

    async fn sweep(&self, leftovers: SweepLeftovers) -> Result<SweptLeftovers, StoreError> {
        self.inner.sweep(leftovers).await
    }

    fn lease_ended(&self, queue: &QueueName, message: &MessageRef) -> Option<LeaseEnded> {
        self.inner.lease_ended(queue, message)
    }

    fn preparation(&self, queue: &QueueName) -> Option<Preparation> {
        self.inner.preparation(queue)
    }

    async fn advice(&self, queue: &QueueName) -> Result<Vec<Advice>, StoreError> {
        self.inner.advice(queue).await
    }

    async fn orders_groups(&self, queue: &QueueName) -> Result<bool, StoreError> {
        self.inner.orders_groups(queue).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.observe(Operation::Clear, Subject::Queue(queue), self.inner.clear(queue)).await
    }

    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        self.observe(
            Operation::CheckQueueAccess,
            Subject::Queue(queue),
            self.inner.check_access(queue, access),
        )
        .await
    }

    fn subscribe(&self, queue: &QueueName) -> Option<Subscription> {
        self.inner.subscribe(queue)
    }

    fn checks_expiry(&self) -> bool {
        self.inner.checks_expiry()
    }

    fn commits_together(&self) -> bool {
        self.inner.commits_together()
    }

    fn throttles_by_shard(&self) -> bool {
        self.inner.throttles_by_shard()
    }

    fn file(&self) -> Option<&Path> {
        self.inner.file()
    }

    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        Arc::new(self.around(Arc::clone(&self.inner).detached()))
    }
}
