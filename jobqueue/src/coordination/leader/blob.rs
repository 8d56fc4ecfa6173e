//! The blob whose lease is the leadership, and the term in its metadata.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::time::{Instant, timeout};

use crate::error::{Error, ErrorKind};
use crate::process::host;
use crate::settings::Metadata;
use crate::storage::{
    BlobLeases, BlobName, BlobStore, Condition, ContainerName, LeaseId, NameError, PutBlob, Storage,
    StoreError, StoreErrorKind as Kind, put_creating,
};

/// The container of the blobs whose leases elect leaders.
pub const CONTAINER: &str = "jobqueue-leaders";
/// The metadata key of the number of the newest term.
pub const TERM: &str = "term";
/// The metadata key of the host and the process that began the term.
pub const HOLDER: &str = "holder";

pub(super) fn name(name: &str) -> Result<BlobName, NameError> {
    BlobName::new(ContainerName::new(CONTAINER)?, name)
}

/// The result of an attempt to become leader.
#[derive(Debug)]
pub(super) enum Attempt {
    /// This process leads. The duration of the lease counts from `requested`.
    Acquired { requested: Instant, term: u64 },
    /// Another candidate leads.
    Taken,
}

#[derive(Debug, Clone)]
pub(super) struct LeaderBlob {
    blobs: Arc<dyn BlobStore>,
    pub(super) leases: Arc<dyn BlobLeases>,
    pub(super) name: BlobName,
    pub(super) lease: Duration,
}

impl LeaderBlob {
    /// Returns a blob that uses the connections of the lease renewer.
    ///
    /// # Errors
    /// `Unsupported` if the storage has no leases.
    pub(super) fn new(storage: &Storage, name: BlobName, lease: Duration) -> Result<Self, StoreError> {
        let stores = storage.detached_stores();
        Ok(Self { blobs: Arc::clone(&stores.blobs), leases: Arc::clone(stores.leases()?), name, lease })
    }

    /// Returns whether a candidate has the lease, by a read, which costs less in a cloud storage than an
    /// attempt to acquire the lease.
    pub(super) async fn is_held(&self) -> Result<bool, Error> {
        match self.with_timeout("look at the lease", self.blobs.blob_properties(&self.name)).await {
            Ok(found) => Ok(found.is_leased),
            Err(e) if e.is_missing_blob() => Ok(false),
            Err(e) => Err(unavailable(e)),
        }
    }

    /// Acquires the lease under the id `proposed` and raises the term. If raising the term fails, releases
    /// the lease; the next attempt then proposes the id `next`, because a release without an answer may
    /// arrive late, and would end a lease that was acquired later under the same id.
    pub(super) async fn acquire(
        &self,
        proposed: &mut LeaseId,
        next: LeaseId,
        seen: u64,
        now: SystemTime,
    ) -> Result<Attempt, Error> {
        let mut failure = None;
        // A missing container, a missing blob and a lost answer cost an attempt each, and one of them may
        // happen twice.
        for _ in 0..5 {
            let requested = Instant::now();
            let call = self.leases.acquire_lease(&self.name, self.lease, proposed);
            match self.with_timeout("acquire lease", call).await {
                Ok(id) if id == *proposed => match self.raise_term(id, seen, now).await {
                    Ok(term) => return Ok(Attempt::Acquired { requested, term }),
                    Err(error) => {
                        *proposed = next;
                        self.release(id).await;
                        return Err(unavailable(error));
                    }
                },
                Ok(_) => return Ok(Attempt::Taken),
                Err(e) if e.kind() == Kind::LeaseAlreadyPresent => return Ok(Attempt::Taken),
                Err(e) if e.is_missing_blob() => {
                    self.create(seen, now).await.map_err(unavailable)?;
                    failure = Some(e);
                }
                // Repeating the request under the same id is safe, and shows whether the first request was
                // applied.
                Err(e) if e.is_ambiguous() => failure = Some(e),
                Err(e) => return Err(unavailable(e)),
            }
        }
        Err(failure.map_or_else(|| Error::new(ErrorKind::Storage, "no lease was taken"), unavailable))
    }

    async fn create(&self, seen: u64, now: SystemTime) -> Result<(), StoreError> {
        let options = PutBlob::if_absent().with_metadata(term_metadata(seen.max(first_term(now))));
        let put = put_creating(&*self.blobs, &self.name, Bytes::new(), options);
        match self.with_timeout("create lease blob", put).await {
            Err(e) if e.kind() == Kind::BlobAlreadyExists || e.is_ambiguous() => Ok(()),
            created => created.map(drop),
        }
    }

    /// Writes the next term under the lease, on condition that the blob has not changed since it was read.
    async fn raise_term(&self, lease: LeaseId, seen: u64, now: SystemTime) -> Result<u64, StoreError> {
        let mut tries = 0;
        loop {
            let found = self.with_timeout("read term", self.blobs.blob_properties(&self.name)).await?;
            let stored = found.metadata.get(TERM).and_then(|text| text.parse().ok());
            // Another program has overwritten the blob.
            let stored = stored.unwrap_or_else(|| first_term(now));
            let term = seen.max(stored).saturating_add(1);
            let options = PutBlob::new()
                .with_condition(Condition::IfMatch(found.etag))
                .with_lease(lease)
                .with_metadata(term_metadata(term).with(HOLDER, holder()));
            let put = self.blobs.put_blob(&self.name, Bytes::new(), options);
            match self.with_timeout("write term", put).await {
                Ok(_) => return Ok(term),
                // Whether or not the term was written, no other process has it; the next attempt raises it
                // again.
                Err(e) if tries < 2 && (e.is_ambiguous() || e.kind() == Kind::ConditionNotMet) => tries += 1,
                Err(e) => return Err(e),
            }
        }
    }

    /// Releases the lease. If the release fails, the lease expires.
    pub(super) async fn release(&self, lease: LeaseId) {
        for _ in 0..2 {
            match self.with_timeout("release lease", self.leases.release_lease(&self.name, &lease)).await {
                Err(e) if e.is_ambiguous() || e.is_retryable() => {}
                _ => return,
            }
        }
    }

    async fn with_timeout<T>(
        &self,
        operation: &'static str,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let expired = |_| StoreError::new(Kind::Timeout, operation, &self.name).with_ambiguous(true);
        timeout(self.lease / 6, call).await.map_err(expired)?
    }
}

/// Returns the seconds since 1970, so that terms grow even if the last term is lost, provided that clocks
/// agree.
fn first_term(now: SystemTime) -> u64 {
    now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn term_metadata(term: u64) -> Metadata {
    Metadata::new().with(TERM, term.to_string())
}

/// Returns the host and the process id of this process in ASCII, because other characters may not survive in
/// metadata.
fn holder() -> String {
    let plain = |c: char| if c.is_ascii_graphic() { c } else { '?' };
    let host: String = host().chars().map(plain).collect();
    format!("{host}:{}", std::process::id())
}

fn unavailable(error: StoreError) -> Error {
    // Missing permissions may be granted later; an unsupported or invalid call always fails.
    let is_permanent = matches!(error.kind(), Kind::Unsupported | Kind::InvalidInput);
    Error::new(ErrorKind::Storage, "acquiring the leader's lease failed")
        .with_retryable(!is_permanent)
        .with_source(error)
}
