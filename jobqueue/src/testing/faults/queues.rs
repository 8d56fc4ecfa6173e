//! Implements the queue half of the port under the plan.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;

use super::Queues;
use crate::name::QueueName;
use crate::settings::metadata::Metadata;
use crate::storage::{
    Access, Advice, Created, DeadLetterMessage, ExpiredReceipt, GetMessages, LeaseEnded, MessageRef,
    Operation, PeekedMessage, Preparation, PutMessage, PutOutcome, QueueProperties, QueueStore, Received,
    StateCounts, StoreError, Subscription, SweepLeftovers, SweptLeftovers, UpdateMessage, Updated,
};

impl Queues {
    /// Returns how the storage treats an expired receipt: one that does not check accepts it.
    fn expired(&self, asked: ExpiredReceipt) -> ExpiredReceipt {
        if self.shape.checks_expiry { asked } else { ExpiredReceipt::Allow }
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl QueueStore for Queues {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.plan.run(Operation::CreateQueue, queue, self.inner.create_queue(queue, metadata)).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.plan.run(Operation::DeleteQueue, queue, self.inner.delete_queue(queue)).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.plan.run(Operation::ListQueues, &prefix, self.inner.list_queues(prefix)).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.plan.run(Operation::QueueProperties, queue, self.inner.queue_properties(queue)).await
    }

    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.plan.run(Operation::QueueMetadata, queue, self.inner.queue_metadata(queue)).await
    }

    async fn counts_by_state(&self, queue: &QueueName) -> Result<Option<StateCounts>, StoreError> {
        self.plan.run(Operation::QueueProperties, queue, self.inner.counts_by_state(queue)).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        let answer = self.inner.set_queue_metadata(queue, metadata);
        self.plan.run(Operation::SetQueueMetadata, queue, answer).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.plan.run(Operation::Put, queue, self.inner.put(queue, message)).await
    }

    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let count = messages.len();
        let answers = self.inner.put_all(queue, messages);
        self.plan.run_all(Operation::PutAll, queue, count, answers).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.plan.run(Operation::Get, queue, self.inner.get(queue, options)).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.plan.run(Operation::Peek, queue, self.inner.peek(queue, count)).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        mut change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        change.expired = self.expired(change.expired);
        self.plan.run(Operation::Update, queue, self.inner.update(queue, message, change)).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let answer = self.inner.delete(queue, message, self.expired(expired));
        self.plan.run(Operation::Delete, queue, answer).await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let count = messages.len();
        let answers = self.inner.delete_all(queue, messages, self.expired(expired));
        self.plan.run_all(Operation::DeleteAll, queue, count, answers).await
    }

    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        self.plan.run(Operation::DeadLetter, queue, self.inner.dead_letter(queue, message, letter)).await
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
        self.plan.run(Operation::Clear, queue, self.inner.clear(queue)).await
    }

    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        self.plan.run(Operation::CheckQueueAccess, queue, self.inner.check_access(queue, access)).await
    }

    fn subscribe(&self, queue: &QueueName) -> Option<Subscription> {
        self.inner.subscribe(queue).filter(|_| self.shape.notifies)
    }

    fn checks_expiry(&self) -> bool {
        self.shape.checks_expiry
    }

    fn commits_together(&self) -> bool {
        self.shape.commits_together
    }

    fn throttles_by_shard(&self) -> bool {
        self.inner.throttles_by_shard()
    }

    fn file(&self) -> Option<&Path> {
        self.inner.file()
    }

    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        Arc::new(Self {
            inner: Arc::clone(&self.inner).detached(),
            plan: Arc::clone(&self.plan),
            shape: self.shape,
        })
    }
}
