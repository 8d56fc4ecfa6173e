//! Implements the blob half of the port under the plan.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::Blobs;
use crate::name::{BlobName, ContainerName};
use crate::storage::{
    Access, Blob, BlobListing, BlobProperties, BlobStore, LeaseDuration, LeaseId, Operation, PutBlob,
    StoreError,
};

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl BlobStore for Blobs {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.plan.run(Operation::CreateContainer, container, self.inner.create_container(container)).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.plan.run(Operation::DeleteContainer, container, self.inner.delete_container(container)).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        self.plan.run(Operation::PutBlob, blob, self.inner.put_blob(blob, data, options)).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.plan.run(Operation::GetBlob, blob, self.inner.get_blob(blob, max_bytes)).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.plan.run(Operation::BlobProperties, blob, self.inner.blob_properties(blob)).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.plan.run(Operation::DeleteBlob, blob, self.inner.delete_blob(blob, lease)).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let answer = self.inner.list_blobs(container, prefix, marker);
        self.plan.run(Operation::ListBlobs, container, answer).await
    }

    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let answer = self.inner.acquire_lease(blob, duration, proposed);
        self.plan.run(Operation::AcquireLease, blob, answer).await
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        self.plan.run(Operation::RenewLease, blob, self.inner.renew_lease(blob, lease)).await
    }

    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        self.plan.run(Operation::ChangeLease, blob, self.inner.change_lease(blob, lease, proposed)).await
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        self.plan.run(Operation::ReleaseLease, blob, self.inner.release_lease(blob, lease)).await
    }

    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        self.plan.run(Operation::BreakLease, blob, self.inner.break_lease(blob, period)).await
    }

    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        self.plan.run(Operation::CheckBlobAccess, container, self.inner.check_access(container, access)).await
    }

    fn file(&self) -> Option<&Path> {
        self.inner.file()
    }

    fn detached(self: Arc<Self>) -> Arc<dyn BlobStore> {
        Arc::new(Self { inner: Arc::clone(&self.inner).detached(), plan: Arc::clone(&self.plan) })
    }
}
