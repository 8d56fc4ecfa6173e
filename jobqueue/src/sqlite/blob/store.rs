//! Implements the blob half of the port: checks arguments, then passes the work to the writer or the reader.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use super::{container, lease, read, write};
use crate::name::{BlobName, ContainerName};
use crate::sqlite::error::Subject;
use crate::sqlite::store::Store;
use crate::storage::rules::{lease::BlobLease, limits};
use crate::storage::{
    Blob, BlobListing, BlobProperties, BlobStore, LeaseDuration, LeaseId, Operation, PutBlob, StoreError,
    StoreErrorKind,
};

/// The approximate number of bytes that an operation writes besides content.
const ROW: usize = 256;

#[async_trait]
impl BlobStore for Store {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        let name = container.clone();
        self.write(Operation::CreateContainer, Subject::Container(container.clone()), ROW, move |batch| {
            container::create(batch, &name)
        })
        .await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        let name = container.clone();
        self.write(Operation::DeleteContainer, Subject::Container(container.clone()), ROW, move |batch| {
            container::delete(batch, &name)
        })
        .await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        check_put(blob, &data, &options)?;
        let name = blob.clone();
        let weight = ROW + data.len();
        self.write(Operation::PutBlob, subject(blob), weight, move |batch| {
            write::put(batch, &name, &data, &options)
        })
        .await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        let name = blob.clone();
        self.read(Operation::GetBlob, subject(blob), move |view| read::get(view, &name, max_bytes)).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        let name = blob.clone();
        self.read(Operation::BlobProperties, subject(blob), move |view| read::properties(view, &name)).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        let (name, lease) = (blob.clone(), lease.copied());
        self.write(Operation::DeleteBlob, subject(blob), ROW, move |batch| write::delete(batch, &name, lease))
            .await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let (name, prefix, marker) = (container.clone(), prefix.to_owned(), marker.map(str::to_owned));
        self.read(Operation::ListBlobs, Subject::Container(container.clone()), move |view| {
            read::list(view, &name, &prefix, marker.as_deref())
        })
        .await
    }

    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        limits::check_lease_duration(blob, duration)?;
        let proposed = *proposed;
        self.lease(Operation::AcquireLease, blob, move |lease, now| {
            Ok((lease.acquire(now, duration, proposed)?, proposed))
        })
        .await
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        let id = *lease;
        self.lease(Operation::RenewLease, blob, move |lease, now| Ok((lease.renew(now, id)?, id))).await
    }

    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let (id, proposed) = (*lease, *proposed);
        self.lease(Operation::ChangeLease, blob, move |lease, now| {
            Ok((lease.change(now, id, proposed)?, proposed))
        })
        .await
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        let id = *lease;
        self.lease(Operation::ReleaseLease, blob, move |lease, _| Ok((lease.release(id)?, ()))).await
    }

    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        limits::check_break_period(blob, period)?;
        self.lease(Operation::BreakLease, blob, move |lease, now| lease.break_within(now, period)).await
    }

    /// Returns this store: its threads and connections serve any runtime, and no runtime can block them.
    fn detached(self: Arc<Self>) -> Arc<dyn BlobStore> {
        self
    }
}

impl Store {
    async fn lease<T: Send + 'static>(
        &self,
        operation: Operation,
        blob: &BlobName,
        rule: impl Fn(&BlobLease, SystemTime) -> Result<(BlobLease, T), StoreErrorKind> + Send + 'static,
    ) -> Result<T, StoreError> {
        let name = blob.clone();
        self.write(operation, subject(blob), ROW, move |batch| lease::apply(batch, operation, &name, &rule))
            .await
    }
}

/// Checks the arguments of a put.
pub(in crate::sqlite) fn check_put(
    blob: &BlobName,
    data: &Bytes,
    options: &PutBlob,
) -> Result<(), StoreError> {
    limits::check_metadata(Operation::PutBlob, blob, &options.metadata)?;
    if data.len() > write::MAX_BLOB_BYTES {
        let detail =
            format!("the blob has {} bytes; {} are allowed in SQLite", data.len(), write::MAX_BLOB_BYTES);
        let error = StoreError::new(StoreErrorKind::TooLarge, Operation::PutBlob.as_str(), blob);
        return Err(error.with_detail(detail));
    }
    Ok(())
}

fn subject(blob: &BlobName) -> Subject {
    Subject::Blob(blob.clone())
}
