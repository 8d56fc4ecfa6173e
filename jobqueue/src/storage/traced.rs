//! Wraps a storage so that its operations are traced.
//!
//! Each operation is one span at DEBUG level, with OpenTelemetry's messaging names. It contains the names of queues and
//! blobs; it never contains receipts, lease ids, metadata or payloads. Tracing changes no answer.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tracing::{Instrument, Span, debug_span, field};

use super::{
    Access, Blob, BlobListing, BlobProperties, BlobStore, Created, ExpiredReceipt, GetMessages,
    LeaseDuration, LeaseId, MessageRef, Operation, PeekedMessage, PutBlob, PutMessage, PutOutcome,
    QueueProperties, QueueStore, Received, Storage, StoreError, Subscription, UpdateMessage, Updated,
};
use crate::name::{BlobName, ContainerName, QueueName};
use crate::settings::metadata::Metadata;

/// Returns `storage` with a span for each operation; `system` is the value of `messaging.system`, such as `sqlite`.
pub fn traced(storage: &Storage, system: &'static str) -> Storage {
    let queues = Traced { inner: Arc::clone(storage.queues()), system };
    let blobs = Traced { inner: Arc::clone(storage.blobs()), system };
    Storage::new(Arc::new(queues), Arc::new(blobs), storage.description())
}

#[derive(Debug)]
struct Traced<S: ?Sized> {
    inner: Arc<S>,
    system: &'static str,
}

impl<S: ?Sized> Traced<S> {
    fn span(&self, operation: Operation, destination: &(dyn std::fmt::Display + Sync)) -> Span {
        debug_span!(
            "storage",
            messaging.system = self.system,
            messaging.destination.name = %destination,
            messaging.operation.name = operation.as_str(),
            error.type = field::Empty,
        )
    }

    async fn record<T>(
        &self,
        operation: Operation,
        destination: &(dyn std::fmt::Display + Sync),
        answer: impl Future<Output = Result<T, StoreError>> + Send,
    ) -> Result<T, StoreError> {
        let span = self.span(operation, destination);
        let answer = answer.instrument(span.clone()).await;
        if let Err(error) = &answer {
            span.record("error.type", field::debug(error.kind()));
        }
        answer
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl QueueStore for Traced<dyn QueueStore> {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.record(Operation::CreateQueue, queue, self.inner.create_queue(queue, metadata)).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.record(Operation::DeleteQueue, queue, self.inner.delete_queue(queue)).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.record(Operation::ListQueues, &prefix, self.inner.list_queues(prefix)).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.record(Operation::QueueProperties, queue, self.inner.queue_properties(queue)).await
    }

    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.record(Operation::QueueMetadata, queue, self.inner.queue_metadata(queue)).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        let answer = self.inner.set_queue_metadata(queue, metadata);
        self.record(Operation::SetQueueMetadata, queue, answer).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.record(Operation::Put, queue, self.inner.put(queue, message)).await
    }

    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let span = self.span(Operation::PutAll, queue);
        self.inner.put_all(queue, messages).instrument(span).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.record(Operation::Get, queue, self.inner.get(queue, options)).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.record(Operation::Peek, queue, self.inner.peek(queue, count)).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        self.record(Operation::Update, queue, self.inner.update(queue, message, change)).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.record(Operation::Delete, queue, self.inner.delete(queue, message, expired)).await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let span = self.span(Operation::DeleteAll, queue);
        self.inner.delete_all(queue, messages, expired).instrument(span).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.record(Operation::Clear, queue, self.inner.clear(queue)).await
    }

    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        self.record(Operation::CheckQueueAccess, queue, self.inner.check_access(queue, access)).await
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

    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        Arc::new(Self { inner: Arc::clone(&self.inner).detached(), system: self.system })
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl BlobStore for Traced<dyn BlobStore> {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.record(Operation::CreateContainer, container, self.inner.create_container(container)).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.record(Operation::DeleteContainer, container, self.inner.delete_container(container)).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        self.record(Operation::PutBlob, blob, self.inner.put_blob(blob, data, options)).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.record(Operation::GetBlob, blob, self.inner.get_blob(blob, max_bytes)).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.record(Operation::BlobProperties, blob, self.inner.blob_properties(blob)).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.record(Operation::DeleteBlob, blob, self.inner.delete_blob(blob, lease)).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let answer = self.inner.list_blobs(container, prefix, marker);
        self.record(Operation::ListBlobs, container, answer).await
    }

    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let answer = self.inner.acquire_lease(blob, duration, proposed);
        self.record(Operation::AcquireLease, blob, answer).await
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        self.record(Operation::RenewLease, blob, self.inner.renew_lease(blob, lease)).await
    }

    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        self.record(Operation::ChangeLease, blob, self.inner.change_lease(blob, lease, proposed)).await
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        self.record(Operation::ReleaseLease, blob, self.inner.release_lease(blob, lease)).await
    }

    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        self.record(Operation::BreakLease, blob, self.inner.break_lease(blob, period)).await
    }

    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        self.record(Operation::CheckBlobAccess, container, self.inner.check_access(container, access)).await
    }

    fn detached(self: Arc<Self>) -> Arc<dyn BlobStore> {
        Arc::new(Self { inner: Arc::clone(&self.inner).detached(), system: self.system })
    }
}
