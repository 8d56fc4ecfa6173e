//! The blob half of the port over a map of maps.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use super::clock::SteadyClock;
use crate::name::{BlobName, ContainerName};
use crate::rules::{lease::BlobLease, limits};
use crate::sync::lock;
use crate::{
    Blob, BlobLeases, BlobListing, BlobPowers, BlobProperties, BlobStore, ETag, LeaseId, Metadata, Operation,
    PutBlob, StoreError, StoreErrorKind,
};

#[derive(Debug)]
pub(super) struct MemoryBlobs {
    clock: Arc<SteadyClock>,
    state: Mutex<BlobsState>,
}

#[derive(Debug, Default)]
struct BlobsState {
    containers: BTreeMap<ContainerName, BTreeMap<String, BlobRow>>,
    writes: u64,
}

#[derive(Debug)]
struct BlobRow {
    data: Bytes,
    etag: ETag,
    modified: SystemTime,
    metadata: Metadata,
    lease: BlobLease,
}

impl BlobRow {
    fn properties(&self, now: SystemTime) -> BlobProperties {
        BlobProperties {
            length: self.data.len() as u64,
            etag: self.etag.clone(),
            modified: self.modified,
            metadata: self.metadata.clone(),
            is_leased: self.lease.is_active(now),
        }
    }
}

impl BlobsState {
    fn container(
        &mut self,
        operation: Operation,
        name: &ContainerName,
    ) -> Result<&mut BTreeMap<String, BlobRow>, StoreError> {
        let missing = || StoreError::new(StoreErrorKind::ContainerNotFound, operation.as_str(), name);
        self.containers.get_mut(name).ok_or_else(missing)
    }

    fn blob(&mut self, operation: Operation, name: &BlobName) -> Result<&mut BlobRow, StoreError> {
        let rows = self.container(operation, name.container())?;
        rows.get_mut(name.name()).ok_or_else(|| error(StoreErrorKind::BlobNotFound, operation, name))
    }
}

impl MemoryBlobs {
    pub(super) fn new(clock: Arc<SteadyClock>) -> Self {
        Self { clock, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, BlobsState> {
        lock(&self.state)
    }

    fn with_blob<T>(
        &self,
        operation: Operation,
        name: &BlobName,
        action: impl FnOnce(&mut BlobRow, SystemTime) -> Result<T, StoreErrorKind>,
    ) -> Result<T, StoreError> {
        let mut state = self.lock();
        let now = self.clock.now();
        let row = state.blob(operation, name)?;
        action(row, now).map_err(|kind| error(kind, operation, name))
    }
}

#[async_trait]
impl BlobStore for MemoryBlobs {
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.lock().containers.entry(container.clone()).or_default();
        Ok(())
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        let mut state = self.lock();
        state.container(Operation::DeleteContainer, container)?;
        state.containers.remove(container);
        Ok(())
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        limits::check_metadata(Operation::PutBlob, blob, &options.metadata)?;
        let mut state = self.lock();
        let now = self.clock.now();
        state.writes += 1;
        let etag = ETag::new(format!("\"0x{:016X}\"", state.writes));
        let rows = state.container(Operation::PutBlob, blob.container())?;
        let present = rows.get(blob.name());
        let refuse = |kind| error(kind, Operation::PutBlob, blob);
        options.condition.check(present.map(|row| &row.etag)).map_err(refuse)?;
        let lease = present.map_or(BlobLease::Available, |row| row.lease);
        let lease = lease.write(now, options.lease).map_err(refuse)?;
        let row = BlobRow { data, etag, modified: now, metadata: options.metadata, lease };
        let properties = row.properties(now);
        rows.insert(blob.name().to_owned(), row);
        Ok(properties)
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.with_blob(Operation::GetBlob, blob, |row, now| {
            let properties = row.properties(now);
            if properties.length > max_bytes {
                return Err(StoreErrorKind::TooLarge);
            }
            Ok(Blob { data: row.data.clone(), properties })
        })
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.with_blob(Operation::BlobProperties, blob, |row, now| Ok(row.properties(now)))
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        let mut state = self.lock();
        let now = self.clock.now();
        let row = state.blob(Operation::DeleteBlob, blob)?;
        let allowed = row.lease.write(now, lease.copied());
        allowed.map_err(|kind| error(kind, Operation::DeleteBlob, blob))?;
        state.container(Operation::DeleteBlob, blob.container())?.remove(blob.name());
        Ok(())
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        let mut state = self.lock();
        let now = self.clock.now();
        let rows =
            state.container(Operation::ListBlobs, container).map_err(|error| error.with_answered_at(now))?;
        // The marker is the last name of the previous page.
        let start = match marker {
            Some(marker) if marker >= prefix => Bound::Excluded(marker),
            _ => Bound::Included(prefix),
        };
        let mut matching =
            rows.range::<str, _>((start, Bound::Unbounded)).take_while(|(name, _)| name.starts_with(prefix));
        let page = matching.by_ref().take(limits::MAX_LISTED_BLOBS);
        let blobs: Vec<_> = page.map(|(name, row)| (name.clone(), row.properties(now))).collect();
        let more = matching.next().is_some();
        let next = blobs.last().map(|(name, _)| name.clone()).filter(|_| more);
        Ok(BlobListing { blobs, next, now: Some(now) })
    }

    fn powers(self: Arc<Self>) -> BlobPowers {
        BlobPowers { leases: Some(self), ..BlobPowers::default() }
    }
}

#[async_trait]
impl BlobLeases for MemoryBlobs {
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: Duration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        limits::check_lease_duration(blob, duration)?;
        self.with_blob(Operation::AcquireLease, blob, |row, now| {
            row.lease = row.lease.acquire(now, duration, *proposed)?;
            Ok(*proposed)
        })
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        self.with_blob(Operation::RenewLease, blob, |row, now| {
            row.lease = row.lease.renew(now, *lease)?;
            Ok(*lease)
        })
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        self.with_blob(Operation::ReleaseLease, blob, |row, _| {
            row.lease = row.lease.release(*lease)?;
            Ok(())
        })
    }
}

fn error(kind: StoreErrorKind, operation: Operation, blob: &BlobName) -> StoreError {
    StoreError::new(kind, operation.as_str(), blob)
}
