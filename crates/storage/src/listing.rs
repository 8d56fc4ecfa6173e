//! Reads and writes records in blobs, on any blob store.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::{Blob, BlobLeases, BlobProperties, BlobStore, LeaseId, PutBlob, StoreError, StoreErrorKind};
use crate::name::{BlobName, ContainerName};

/// The lease under which a blob is compared and deleted.
const DELETION_LEASE: Duration = Duration::from_secs(15);

/// Writes a blob, and creates its container if it is missing.
pub async fn put_creating(
    blobs: &dyn BlobStore,
    blob: &BlobName,
    data: Bytes,
    options: PutBlob,
) -> Result<BlobProperties, StoreError> {
    match blobs.put_blob(blob, data.clone(), options.clone()).await {
        Err(e) if e.kind() == StoreErrorKind::ContainerNotFound => {
            blobs.create_container(blob.container()).await?;
            blobs.put_blob(blob, data, options).await
        }
        written => written,
    }
}

/// Reads a blob of at most `max_bytes`; `None` if it does not exist.
pub async fn get_if_present(
    blobs: &dyn BlobStore,
    blob: &BlobName,
    max_bytes: u64,
) -> Result<Option<Blob>, StoreError> {
    match blobs.get_blob(blob, max_bytes).await {
        Err(e) if e.is_missing_blob() => Ok(None),
        found => found.map(Some),
    }
}

/// Deletes a blob if it exists.
pub async fn delete_if_present(blobs: &dyn BlobStore, blob: &BlobName) -> Result<(), StoreError> {
    match blobs.delete_blob(blob, None).await {
        Err(e) if e.is_missing_blob() => Ok(()),
        deleted => deleted,
    }
}

/// Deletes an existing blob if its properties satisfy `is_same`, and returns whether they did. A lease keeps
/// other processes from writing the blob between the comparison and the deletion. `lease` is the same for all
/// attempts.
///
/// # Errors
/// The errors of the storage; `LeaseAlreadyPresent` while another client has the blob's lease.
pub async fn delete_if_same(
    blobs: &dyn BlobStore,
    leases: &dyn BlobLeases,
    blob: &BlobName,
    lease: LeaseId,
    is_same: impl Fn(&BlobProperties) -> bool,
) -> Result<bool, StoreError> {
    let lease = leases.acquire_lease(blob, DELETION_LEASE, &lease).await?;
    let deleted = match blobs.blob_properties(blob).await {
        Ok(found) if is_same(&found) => blobs.delete_blob(blob, Some(&lease)).await.map(|()| true),
        found => found.map(|_| false),
    };
    if !matches!(deleted, Ok(true)) {
        // If this fails, the lease expires.
        drop(leases.release_lease(blob, &lease).await);
    }
    deleted
}

/// The blobs of a container, or of a prefix.
#[derive(Debug, Default)]
pub struct Listed {
    /// The blobs in order of name.
    pub blobs: Vec<(BlobName, BlobProperties)>,
    /// The storage's time at the beginning, if it returns one.
    pub now: Option<SystemTime>,
}

/// Returns whether a container has a blob whose name begins with `prefix`. Reads on after an empty page,
/// since further pages may follow it.
pub async fn has_any(
    blobs: &dyn BlobStore,
    container: &ContainerName,
    prefix: &str,
) -> Result<bool, StoreError> {
    let mut next = None::<String>;
    loop {
        let page = blobs.list_blobs(container, prefix, next.as_deref()).await?;
        next = page.next;
        if !page.blobs.is_empty() || next.is_none() {
            return Ok(!page.blobs.is_empty());
        }
    }
}

/// Returns the storage's time by a listing of a container, which may not exist; `None` if the answer has no
/// time.
pub async fn time_by_listing(
    blobs: &dyn BlobStore,
    container: &ContainerName,
) -> Result<Option<SystemTime>, StoreError> {
    // Few blobs have names with this prefix, mostly none.
    Ok(list_all(blobs, container, "clock-").await?.now)
}

/// Lists all blobs below a prefix in order of name; none if the container does not exist.
pub async fn list_all(
    blobs: &dyn BlobStore,
    container: &ContainerName,
    prefix: &str,
) -> Result<Listed, StoreError> {
    let (mut all, mut next) = (Listed::default(), None::<String>);
    loop {
        let page = match blobs.list_blobs(container, prefix, next.as_deref()).await {
            Err(e) if e.kind() == StoreErrorKind::ContainerNotFound => {
                return Ok(Listed { now: all.now.or(e.answered_at()), ..all });
            }
            page => page?,
        };
        all.now = all.now.or(page.now);
        for (name, properties) in page.blobs {
            all.blobs.extend(BlobName::new(container.clone(), name).map(|blob| (blob, properties)));
        }
        next = page.next;
        if next.is_none() {
            return Ok(all);
        }
    }
}
