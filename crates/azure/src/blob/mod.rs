//! Implements the blob half of the port over the service's REST operations.

mod blobs;
mod containers;
mod leases;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;

use super::connection::Connection;
use super::probe;
use jobqueue_storage::{
    Access, Blob, BlobLeases, BlobListing, BlobPowers, BlobProperties, BlobStore, Detach, LeaseDuration,
    LeaseId, Permissions, PutBlob, StoreError,
};
use jobqueue_storage::{BlobName, ContainerName};

/// The blobs of a storage account: block blobs, each written by one request.
#[derive(Debug)]
pub(super) struct AzureBlobs {
    connection: Arc<Connection>,
}

impl AzureBlobs {
    pub(super) fn new(connection: Arc<Connection>) -> Self {
        Self { connection }
    }
}

#[async_trait]
impl BlobStore for AzureBlobs {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        containers::create(&self.connection, container).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        containers::delete(&self.connection, container).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        blobs::put(&self.connection, blob, data, options).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        blobs::get(&self.connection, blob, max_bytes).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        blobs::properties(&self.connection, blob).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        blobs::delete(&self.connection, blob, lease).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        containers::list(&self.connection, container, prefix, marker).await
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        BlobPowers {
            leases: Some(Arc::clone(&self) as _),
            permissions: Some(Arc::clone(&self) as _),
            detach: Some(self),
            ..BlobPowers::default()
        }
    }
}

#[async_trait]
impl BlobLeases for AzureBlobs {
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        leases::acquire(&self.connection, blob, duration, proposed).await
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        leases::renew(&self.connection, blob, lease).await
    }

    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        leases::change(&self.connection, blob, lease, proposed).await
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        leases::release(&self.connection, blob, lease).await
    }

    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        leases::break_lease(&self.connection, blob, period).await
    }
}

#[async_trait]
impl Permissions<ContainerName> for AzureBlobs {
    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        probe::blobs(&self.connection, container, access).await
    }
}

impl Detach<dyn BlobStore> for AzureBlobs {
    fn detached(&self) -> Arc<dyn BlobStore> {
        Arc::new(Self { connection: self.connection.again() })
    }
}
