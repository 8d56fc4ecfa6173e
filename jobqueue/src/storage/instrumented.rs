//! Wraps a storage so that its operations are traced, and its load is measured.
//!
//! A traced operation is one span at DEBUG level, with OpenTelemetry's messaging names. It contains the names of queues
//! and blobs; it never contains receipts, lease ids, metadata or payloads. The [`Throttle`] of the storage takes note of
//! every answer of the queues. The wrapper changes no answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tracing::{Instrument, Span, debug_span, field};

use super::throttle::Throttle;
use super::{
    Access, Blob, BlobListing, BlobProperties, BlobStore, Created, ExpiredReceipt, GetMessages,
    LeaseDuration, LeaseId, MessageRef, Operation, PeekedMessage, PutBlob, PutMessage, PutOutcome,
    QueueProperties, QueueStore, Received, Storage, StoreError, Subscription, UpdateMessage, Updated,
};
use crate::name::{BlobName, ContainerName, QueueName};
use crate::settings::metadata::Metadata;

/// Returns `storage` with a span for each operation; `system` is the value of `messaging.system`, such as `sqlite`.
///
/// Both are one storage: when it throttles one of them, users of the other wait too.
pub fn traced(storage: &Storage, system: &'static str) -> Storage {
    storage.wrapped(
        Arc::new(Instrumented { inner: Arc::clone(storage.queues()), throttle: None, system: Some(system) }),
        Arc::new(Instrumented { inner: Arc::clone(storage.blobs()), throttle: None, system: Some(system) }),
    )
}

/// One half of a storage whose operations are observed.
#[derive(Debug)]
pub(super) struct Instrumented<S: ?Sized> {
    inner: Arc<S>,
    /// The load that takes note of the answers.
    throttle: Option<Arc<Throttle>>,
    /// The system that spans name. Without it there are no spans.
    system: Option<&'static str>,
}

impl Instrumented<dyn QueueStore> {
    /// Returns queues whose answers `throttle` takes note of.
    pub(super) fn measured(inner: Arc<dyn QueueStore>, throttle: Arc<Throttle>) -> Self {
        Self { inner, throttle: Some(throttle), system: None }
    }
}

impl<S: ?Sized> Instrumented<S> {
    fn span(&self, operation: Operation, destination: &(dyn std::fmt::Display + Sync)) -> Span {
        let Some(system) = self.system else { return Span::none() };
        debug_span!(
            "storage",
            messaging.system = system,
            messaging.destination.name = %destination,
            messaging.operation.name = operation.as_str(),
            error.type = field::Empty,
        )
    }

    fn note<T>(&self, operation: Operation, answer: &Result<T, StoreError>) {
        if let Some(throttle) = &self.throttle {
            throttle.note(answer, operation.can_wait());
        }
    }

    async fn observe<T>(
        &self,
        operation: Operation,
        destination: &(dyn std::fmt::Display + Sync),
        answer: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let span = self.span(operation, destination);
        let answer = answer.instrument(span.clone()).await;
        self.note(operation, &answer);
        if let Err(error) = &answer {
            span.record("error.type", field::debug(error.kind()));
        }
        answer
    }

    /// Observes an operation on several messages.
    async fn observe_all<T>(
        &self,
        operation: Operation,
        queue: &QueueName,
        answers: impl Future<Output = Vec<Result<T, StoreError>>> + Send,
    ) -> Vec<Result<T, StoreError>> {
        let answers = answers.instrument(self.span(operation, queue)).await;
        answers.iter().for_each(|answer| self.note(operation, answer));
        answers
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl QueueStore for Instrumented<dyn QueueStore> {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.observe(Operation::CreateQueue, queue, self.inner.create_queue(queue, metadata)).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.observe(Operation::DeleteQueue, queue, self.inner.delete_queue(queue)).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.observe(Operation::ListQueues, &prefix, self.inner.list_queues(prefix)).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.observe(Operation::QueueProperties, queue, self.inner.queue_properties(queue)).await
    }

    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.observe(Operation::QueueMetadata, queue, self.inner.queue_metadata(queue)).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        let answer = self.inner.set_queue_metadata(queue, metadata);
        self.observe(Operation::SetQueueMetadata, queue, answer).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.observe(Operation::Put, queue, self.inner.put(queue, message)).await
    }

    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        self.observe_all(Operation::PutAll, queue, self.inner.put_all(queue, messages)).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.observe(Operation::Get, queue, self.inner.get(queue, options)).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.observe(Operation::Peek, queue, self.inner.peek(queue, count)).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        self.observe(Operation::Update, queue, self.inner.update(queue, message, change)).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.observe(Operation::Delete, queue, self.inner.delete(queue, message, expired)).await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        self.observe_all(Operation::DeleteAll, queue, self.inner.delete_all(queue, messages, expired)).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.observe(Operation::Clear, queue, self.inner.clear(queue)).await
    }

    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        self.observe(Operation::CheckQueueAccess, queue, self.inner.check_access(queue, access)).await
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

    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        let inner = Arc::clone(&self.inner).detached();
        Arc::new(Self { inner, throttle: self.throttle.clone(), system: self.system })
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl BlobStore for Instrumented<dyn BlobStore> {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.observe(Operation::CreateContainer, container, self.inner.create_container(container)).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.observe(Operation::DeleteContainer, container, self.inner.delete_container(container)).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        self.observe(Operation::PutBlob, blob, self.inner.put_blob(blob, data, options)).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.observe(Operation::GetBlob, blob, self.inner.get_blob(blob, max_bytes)).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.observe(Operation::BlobProperties, blob, self.inner.blob_properties(blob)).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.observe(Operation::DeleteBlob, blob, self.inner.delete_blob(blob, lease)).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let answer = self.inner.list_blobs(container, prefix, marker);
        self.observe(Operation::ListBlobs, container, answer).await
    }

    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let answer = self.inner.acquire_lease(blob, duration, proposed);
        self.observe(Operation::AcquireLease, blob, answer).await
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        self.observe(Operation::RenewLease, blob, self.inner.renew_lease(blob, lease)).await
    }

    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        self.observe(Operation::ChangeLease, blob, self.inner.change_lease(blob, lease, proposed)).await
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        self.observe(Operation::ReleaseLease, blob, self.inner.release_lease(blob, lease)).await
    }

    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        self.observe(Operation::BreakLease, blob, self.inner.break_lease(blob, period)).await
    }

    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        self.observe(Operation::CheckBlobAccess, container, self.inner.check_access(container, access)).await
    }

    fn detached(self: Arc<Self>) -> Arc<dyn BlobStore> {
        let inner = Arc::clone(&self.inner).detached();
        Arc::new(Self { inner, throttle: self.throttle.clone(), system: self.system })
    }
}
