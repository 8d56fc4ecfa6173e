//! Forwards the operations on blobs.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::{Instrumented, Subject};
use crate::name::{BlobName, ContainerName};
use crate::storage::{
    Access, Blob, BlobListing, BlobProperties, BlobStore, LeaseDuration, LeaseId, Operation, PutBlob,
    StoreError,
};

#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl BlobStore for Instrumented<dyn BlobStore> {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.observe(
            Operation::CreateContainer,
            Subject::Other(container),
            self.inner.create_container(container),
        )
        .await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.observe(
            Operation::DeleteContainer,
            Subject::Other(container),
            self.inner.delete_container(container),
        )
        .await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        self.observe(Operation::PutBlob, Subject::Other(blob), self.inner.put_blob(blob, data, options)).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.observe(Operation::GetBlob, Subject::Other(blob), self.inner.get_blob(blob, max_bytes)).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.observe(Operation::BlobProperties, Subject::Other(blob), self.inner.blob_properties(blob)).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.observe(Operation::DeleteBlob, Subject::Other(blob), self.inner.delete_blob(blob, lease)).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let answer = self.inner.list_blobs(container, prefix, marker);
        self.observe(Operation::ListBlobs, Subject::Other(container), answer).await
    }

    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let answer = self.inner.acquire_lease(blob, duration, proposed);
        self.observe(Operation::AcquireLease, Subject::Other(blob), answer).await
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        self.observe(Operation::RenewLease, Subject::Other(blob), self.inner.renew_lease(blob, lease)).await
    }

    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        self.observe(
            Operation::ChangeLease,
            Subject::Other(blob),
            self.inner.change_lease(blob, lease, proposed),
        )
        .await
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        self.observe(Operation::ReleaseLease, Subject::Other(blob), self.inner.release_lease(blob, lease))
            .await
    }

    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        self.observe(Operation::BreakLease, Subject::Other(blob), self.inner.break_lease(blob, period)).await
    }

    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        self.observe(
            Operation::CheckBlobAccess,
            Subject::Other(container),
            self.inner.check_access(container, access),
        )
        .await
    }

    fn file(&self) -> Option<&Path> {
        self.inner.file()
    }

    fn detached(self: Arc<Self>) -> Arc<dyn BlobStore> {
        Arc::new(self.around(Arc::clone(&self.inner).detached()))
    }
}
