//! Claim checks: payloads and checkpoints that are too large for a message, kept in blobs.
//!
//! This module reads and writes blobs by reference. Of queues it knows only the names.
//! `delivery/message_changes.rs` deletes the blobs of a job that is done, through `queue_core/blobs.rs`.
//!
//! The order of operations keeps every reference valid: a blob is written before the message that refers to
//! it, and deleted after it. If the process crashes between the two, an orphan remains;
//! [`sweep`](crate::maintenance::sweep) removes it when no message can need it.

mod payload_error;
mod sweep;
mod sweep_options;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

pub(crate) use payload_error::PayloadError;
pub(crate) use sweep::{PAYLOADS, SweptContainer, sweep_containers};
pub use sweep_options::{SweepOptions, SweepReport};

use crate::envelope::{Payload, Sha256Digest, StoredReference};
use crate::runtime::Runtime;
use crate::storage::{
    BlobName, BlobStore, ContainerName, NameError, PutBlob, QueueName, Storage, StoreError, StoreErrorKind,
    Tries, delete_if_present, needed_until,
};

pub(crate) const CONTAINER: &str = "jobqueue-payloads";

/// The time after which [`ClaimChecks::store`] gives up; a message with less time uses
/// [`ClaimChecks::store_by`].
const WRITE_BUDGET: Duration = Duration::from_secs(30);

/// The default maximum size of a payload: 32 MiB.
pub(crate) const DEFAULT_MAX_PAYLOAD_BYTES: u64 = 32 * 1024 * 1024;

/// The maximum size of a checkpoint, independent of the payload size that a worker accepts.
pub(crate) const MAX_CHECKPOINT_BYTES: u64 = 32 * 1024 * 1024;

/// Stores, loads and removes the blobs that messages refer to.
#[derive(Debug, Clone)]
pub(crate) struct ClaimChecks {
    blobs: Arc<dyn BlobStore>,
    runtime: Runtime,
    container: ContainerName,
    max_bytes: u64,
    /// The lock of the storage for [`load_for_copy`](Self::load_for_copy).
    copying: Arc<Mutex<()>>,
}

impl ClaimChecks {
    pub(crate) fn new(storage: &Storage, max_bytes: u64) -> Result<Self, NameError> {
        Ok(Self {
            blobs: Arc::clone(storage.blobs()),
            runtime: storage.runtime().clone(),
            container: ContainerName::new(CONTAINER)?,
            max_bytes,
            copying: Arc::clone(storage.copying()),
        })
    }

    pub(crate) fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// Returns a new, unique reference for `data`. Writes nothing.
    pub(crate) fn reference(&self, queue: &QueueName, data: &[u8]) -> StoredReference {
        StoredReference::for_data(day(self.runtime.now()), queue, self.runtime.uuid_v4(), data)
    }

    /// Returns the name and the write options of a blob, for storages that write it in the caller's
    /// transaction.
    pub(crate) fn blob(
        &self,
        reference: &StoredReference,
        expires: Option<SystemTime>,
    ) -> Result<(BlobName, PutBlob), NameError> {
        let name = BlobName::new(self.container.clone(), reference.to_string())?;
        Ok((name, PutBlob::if_absent().with_metadata(needed_until(self.runtime.now(), expires))))
    }

    /// Writes `data` under `reference`. The message expires at `expires`.
    pub(crate) async fn store(
        &self,
        reference: &StoredReference,
        data: Bytes,
        expires: Option<SystemTime>,
    ) -> Result<(), StoreError> {
        self.store_by(Instant::now() + WRITE_BUDGET, reference, data, expires).await
    }

    /// Writes `data` under `reference`. Retries a throttled request until `give_up`.
    pub(crate) async fn store_by(
        &self,
        give_up: Instant,
        reference: &StoredReference,
        data: Bytes,
        expires: Option<SystemTime>,
    ) -> Result<(), StoreError> {
        let (name, options) = self.blob(reference, expires).map_err(|e| invalid(e, reference))?;
        let mut tries = Tries::until(&self.runtime, give_up, 1, 1);
        let mut containers = 0;
        loop {
            match self.blobs.put_blob(&name, data.clone(), options.clone()).await {
                Ok(_) => return Ok(()),
                Err(e) if e.kind() == StoreErrorKind::ContainerNotFound && containers < 2 => {
                    containers += 1;
                    self.blobs.create_container(&self.container).await?;
                }
                // The name is unique, so an earlier attempt wrote the existing blob.
                Err(e) if e.kind() == StoreErrorKind::BlobAlreadyExists && tries.is_in_doubt() => {
                    return Ok(());
                }
                Err(e) => tries.failed(e).await?,
            }
        }
    }

    /// Returns the payload of a message of `queue`, from the message or its blob. A missing payload is JSON's
    /// `null`.
    pub(crate) async fn payload(&self, queue: &QueueName, payload: &Payload) -> Result<Bytes, PayloadError> {
        match payload {
            Payload::Stored(reference) => self.load(queue, reference, self.max_bytes).await,
            inline => self.inline(inline).unwrap_or(Ok(Bytes::new())),
        }
    }

    /// Returns the payload if it is in the message itself; `None` if it is in a blob.
    pub(crate) fn inline(&self, payload: &Payload) -> Option<Result<Bytes, PayloadError>> {
        let data = match payload {
            Payload::None => Bytes::from_static(b"null"),
            other => other.inline()?.clone(),
        };
        Some(self.check_size(data))
    }

    fn check_size(&self, data: Bytes) -> Result<Bytes, PayloadError> {
        if data.len() as u64 > self.max_bytes {
            return Err(PayloadError::TooLarge { limit: self.max_bytes });
        }
        Ok(data)
    }

    /// Checks that the blob of `reference` exists and has its length, for a message of `queue`, without
    /// reading it.
    pub(crate) async fn check(
        &self,
        queue: &QueueName,
        reference: &StoredReference,
    ) -> Result<(), PayloadError> {
        let name = self.name_of(queue, reference, self.max_bytes)?;
        let found = self.blobs.blob_properties(&name).await.map_err(PayloadError::from_store)?;
        if found.length == reference.size { Ok(()) } else { Err(PayloadError::Corrupt) }
    }

    fn name_of(
        &self,
        queue: &QueueName,
        reference: &StoredReference,
        limit: u64,
    ) -> Result<BlobName, PayloadError> {
        if !is_own(queue, reference) {
            return Err(PayloadError::OtherQueue);
        }
        if reference.size > limit {
            return Err(PayloadError::TooLarge { limit });
        }
        self.blob(reference, None).map(|(name, _)| name).map_err(|_| PayloadError::OtherQueue)
    }

    /// Reads and verifies the blob of `reference`, of at most `limit` bytes, for a message of `queue`.
    pub(crate) async fn load(
        &self,
        queue: &QueueName,
        reference: &StoredReference,
        limit: u64,
    ) -> Result<Bytes, PayloadError> {
        let name = self.name_of(queue, reference, limit)?;
        let blob = self.blobs.get_blob(&name, reference.size).await.map_err(PayloadError::from_store)?;
        if blob.data.len() as u64 != reference.size || Sha256Digest::of(&blob.data) != reference.sha256 {
            return Err(PayloadError::Corrupt);
        }
        Ok(blob.data)
    }

    /// Reads the blob of `reference` for a copy of its message: up to `limit` bytes, or up to the maximum
    /// payload size if that is more. Keep the guard as long as the data, so that only one blob above the
    /// maximum payload size is in memory, however many queues the storage has.
    pub(crate) async fn load_for_copy(
        &self,
        queue: &QueueName,
        reference: &StoredReference,
        limit: u64,
    ) -> Result<(Bytes, Option<MutexGuard<'_, ()>>), PayloadError> {
        let copying = if reference.size > self.max_bytes { Some(self.copying.lock().await) } else { None };
        let data = self.load(queue, reference, limit.max(self.max_bytes)).await?;
        Ok((data, copying))
    }

    /// Deletes the blob of `reference`, for a message of `queue`. Retries a throttled request for some time.
    /// A missing blob is not an error. The blob of another queue is not deleted, because references come from
    /// messages, which are untrusted; nor is a blob that several messages may share.
    pub(crate) async fn remove(
        &self,
        queue: &QueueName,
        reference: &StoredReference,
    ) -> Result<(), StoreError> {
        if !is_own(queue, reference) || reference.is_shared() {
            return Ok(());
        }
        let (name, _) = self.blob(reference, None).map_err(|e| invalid(e, reference))?;
        let tries = Tries::brief(&self.runtime, 2, 2);
        tries.run(|| delete_if_present(&*self.blobs, &name)).await
    }
}

/// Returns whether a message of `queue` may refer to the blob: it was written for the queue, or for the queue
/// whose dead-letter queue this is.
fn is_own(queue: &QueueName, reference: &StoredReference) -> bool {
    reference.queue() == queue || reference.queue().dead_letter().is_ok_and(|dead| dead == *queue)
}

fn invalid(error: NameError, reference: &StoredReference) -> StoreError {
    StoreError::new(StoreErrorKind::InvalidInput, "name payload", reference).with_source(error)
}

/// Returns the date in UTC as `YYYYMMDD`. The names of blobs begin with it, so that a sweep can list them by
/// age.
pub(crate) fn day(time: SystemTime) -> String {
    let timestamp = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    timestamp.to_zoned(TimeZone::UTC).strftime("%Y%m%d").to_string()
}
