//! Implements the blob half of the port: checks arguments, then runs statements.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::row::Place;
use super::size::check_put;
use super::write::Written;
use crate::database::Call;
use crate::store::Store;
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    Blob, BlobLeases, BlobListing, BlobName, BlobPowers, BlobProperties, BlobStore, ContainerName, Detach,
    LeaseId, Operation, PutBlob, StoreError,
};

#[async_trait]
impl BlobStore for Store {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.make_container(container).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.remove_container(container).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        check_put(blob, &data, &options)?;
        self.write(&Written { blob, data, options }).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.content(blob, max_bytes).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        let call = Call::new(Operation::BlobProperties, blob);
        let place = Place::find(&self.database, call, blob).await?;
        Ok(place.require(call)?.properties(place.now))
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.remove_blob(blob, lease.copied()).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        self.list(container, prefix, marker).await
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        BlobPowers {
            leases: Some(Arc::clone(&self) as _),
            journal: Some(Arc::clone(&self) as _),
            transaction_place: Some(self.transaction_place()),
            detach: Some(self),
            ..BlobPowers::default()
        }
    }
}

#[async_trait]
impl BlobLeases for Store {
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: Duration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        limits::check_lease_duration(blob, duration)?;
        let id = *proposed;
        self.change_lease(Operation::AcquireLease, blob, |lease, now| lease.acquire(now, duration, id))
            .await?;
        Ok(id)
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        let id = *lease;
        self.change_lease(Operation::RenewLease, blob, |lease, now| lease.renew(now, id)).await?;
        Ok(id)
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        let id = *lease;
        self.change_lease(Operation::ReleaseLease, blob, |lease, _| lease.release(id)).await
    }
}

impl Detach<dyn BlobStore> for Store {
    fn detached(&self) -> Arc<dyn BlobStore> {
        Arc::new(self.again())
    }
}
