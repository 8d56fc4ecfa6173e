//! Forwards the methods of the two stores.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Intercepted, Interceptor};
use crate::name::{BlobName, ContainerName, QueueName};
use crate::{
    Blob, BlobListing, BlobPowers, BlobProperties, BlobStore, Created, ExpiredReceipt, GetMessages, LeaseId,
    MessageRef, Metadata, Operation, PeekedMessage, PutBlob, PutMessage, PutOutcome, QueuePowers,
    QueueProperties, QueueStore, Received, StoreError, UpdateMessage, Updated,
};

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<I: Interceptor> QueueStore for Intercepted<dyn QueueStore, I> {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.on_queue(Operation::CreateQueue, queue, self.inner.create_queue(queue, metadata)).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.on_queue(Operation::DeleteQueue, queue, self.inner.delete_queue(queue)).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.on_other(Operation::ListQueues, &prefix, self.inner.list_queues(prefix)).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.on_queue(Operation::QueueProperties, queue, self.inner.queue_properties(queue)).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        let perform = self.inner.set_queue_metadata(queue, metadata);
        self.on_queue(Operation::SetQueueMetadata, queue, perform).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.on_queue(Operation::Put, queue, self.inner.put(queue, message)).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.on_queue(Operation::Get, queue, self.inner.get(queue, options)).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.on_queue(Operation::Peek, queue, self.inner.peek(queue, count)).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        mut change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        change.expired = self.interceptor.expired(change.expired);
        self.on_queue(Operation::Update, queue, self.inner.update(queue, message, change)).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let expired = self.interceptor.expired(expired);
        self.on_queue(Operation::Delete, queue, self.inner.delete(queue, message, expired)).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.on_queue(Operation::Clear, queue, self.inner.clear(queue)).await
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        self.queue_powers()
    }
}

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<I: Interceptor> BlobStore for Intercepted<dyn BlobStore, I> {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.on_other(Operation::CreateContainer, container, self.inner.create_container(container)).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.on_other(Operation::DeleteContainer, container, self.inner.delete_container(container)).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        self.on_other(Operation::PutBlob, blob, self.inner.put_blob(blob, data, options)).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.on_other(Operation::GetBlob, blob, self.inner.get_blob(blob, max_bytes)).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.on_other(Operation::BlobProperties, blob, self.inner.blob_properties(blob)).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.on_other(Operation::DeleteBlob, blob, self.inner.delete_blob(blob, lease)).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let perform = self.inner.list_blobs(container, prefix, marker);
        self.on_other(Operation::ListBlobs, container, perform).await
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        self.blob_powers()
    }
}
