//! The blob half of the port: checks arguments, then passes the work to the writer or the reader.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use super::row::BlobRow;
use super::{read, write};
use crate::store::Store;
use jobqueue_storage::rules::{lease::BlobLease, limits};
use jobqueue_storage::{
    Blob, BlobLeases, BlobListing, BlobName, BlobPowers, BlobProperties, BlobStore, ContainerName, LeaseId,
    Operation, PutBlob, StoreError, StoreErrorKind, TransactionPlace,
};

/// The approximate number of bytes that an operation writes in addition to the content.
const ROW_BYTES: usize = 256;

#[async_trait]
impl BlobStore for Store {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.write(Operation::CreateContainer, container, ROW_BYTES, write::create_container).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.write(Operation::DeleteContainer, container, ROW_BYTES, write::delete_container).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        check_put(blob, &data, &options)?;
        let weight = ROW_BYTES + data.len();
        self.write(Operation::PutBlob, blob, weight, move |batch, name| {
            write::put(batch, name, &data, &options)
        })
        .await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.read(Operation::GetBlob, blob, move |view, name| read::get(view, name, max_bytes)).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.read(Operation::BlobProperties, blob, |view, name| {
            Ok(BlobRow::require(&view.connection, Operation::BlobProperties, name)?.properties(view.now))
        })
        .await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        let id = lease.copied();
        self.write(Operation::DeleteBlob, blob, ROW_BYTES, move |batch, name| write::delete(batch, name, id))
            .await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let (prefix, marker) = (prefix.to_owned(), marker.map(str::to_owned));
        self.read(Operation::ListBlobs, container, move |view, name| {
            read::list(view, name, &prefix, marker.as_deref())
        })
        .await
    }

    /// Needs no `detach`: the threads and connections of the store serve any runtime, and no runtime can
    /// block them.
    fn powers(self: Arc<Self>) -> BlobPowers {
        BlobPowers {
            transaction_place: Some(TransactionPlace::File(self.path().into())),
            journal: Some(Arc::clone(&self) as _),
            leases: Some(self),
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
        self.lease(Operation::AcquireLease, blob, move |lease, now| {
            Ok((lease.acquire(now, duration, id)?, id))
        })
        .await
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        let id = *lease;
        self.lease(Operation::RenewLease, blob, move |lease, now| Ok((lease.renew(now, id)?, id))).await
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        let id = *lease;
        self.lease(Operation::ReleaseLease, blob, move |lease, _| Ok((lease.release(id)?, ()))).await
    }
}

impl Store {
    async fn lease<T: Send + 'static>(
        &self,
        operation: Operation,
        blob: &BlobName,
        rule: impl Fn(&BlobLease, SystemTime) -> Result<(BlobLease, T), StoreErrorKind> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.write(operation, blob, ROW_BYTES, move |batch, name| {
            write::change_lease(batch, operation, name, &rule)
        })
        .await
    }
}

pub(crate) fn check_put(blob: &BlobName, data: &Bytes, options: &PutBlob) -> Result<(), StoreError> {
    limits::check_metadata(Operation::PutBlob, blob, &options.metadata)?;
    if data.len() > write::MAX_BLOB_BYTES {
        let detail =
            format!("the blob has {} bytes; {} are allowed in SQLite", data.len(), write::MAX_BLOB_BYTES);
        let error = StoreError::new(StoreErrorKind::TooLarge, Operation::PutBlob.as_str(), blob);
        return Err(error.with_detail(detail));
    }
    Ok(())
}
