//! Reads and writes records in blobs, on any blob store.

use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::{
    Blob, BlobLeases, BlobListing, BlobProperties, BlobStore, LeaseId, PutBlob, StoreError, StoreErrorKind,
    Tries,
};
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

/// The pages of a listing in order of name. A page may be empty although further pages follow. A container
/// that does not exist has one empty page.
#[derive(Debug)]
pub struct BlobPages<'a> {
    blobs: &'a dyn BlobStore,
    container: &'a ContainerName,
    prefix: &'a str,
    next: Option<String>,
    is_over: bool,
}

impl<'a> BlobPages<'a> {
    /// Returns the pages of the blobs whose names begin with `prefix`.
    pub fn new(blobs: &'a dyn BlobStore, container: &'a ContainerName, prefix: &'a str) -> Self {
        Self { blobs, container, prefix, next: None, is_over: false }
    }

    /// Returns the next page; `None` after the last page. The request is sent again as `tries` allow.
    pub async fn next(&mut self, tries: Option<Tries>) -> Result<Option<BlobListing>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        let list = || self.blobs.list_blobs(self.container, self.prefix, self.next.as_deref());
        let listed = match tries {
            Some(tries) => tries.run(list).await,
            None => list().await,
        };
        let page = match listed {
            Err(e) if e.is_missing_blob() => BlobListing { now: e.answered_at(), ..BlobListing::default() },
            page => page?,
        };
        self.next.clone_from(&page.next);
        self.is_over = page.next.is_none();
        Ok(Some(page))
    }
}

/// The blobs of a container, or of a prefix.
#[derive(Debug, Default)]
pub struct Listed {
    /// The blobs in order of name.
    pub blobs: Vec<(BlobName, BlobProperties)>,
    /// The storage's time at the beginning, if it returns one.
    pub now: Option<SystemTime>,
}

/// Returns whether a container has a blob whose name begins with `prefix`.
pub async fn has_any(
    blobs: &dyn BlobStore,
    container: &ContainerName,
    prefix: &str,
) -> Result<bool, StoreError> {
    let mut pages = BlobPages::new(blobs, container, prefix);
    while let Some(page) = pages.next(None).await? {
        if !page.blobs.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
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
    let (mut all, mut pages) = (Listed::default(), BlobPages::new(blobs, container, prefix));
    while let Some(page) = pages.next(None).await? {
        all.now = all.now.or(page.now);
        for (name, properties) in page.blobs {
            all.blobs.extend(BlobName::new(container.clone(), name).map(|blob| (blob, properties)));
        }
    }
    Ok(all)
}
