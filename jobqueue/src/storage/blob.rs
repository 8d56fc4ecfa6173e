//! The blob half of the port.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use bytes::Bytes;

use super::{Access, StoreError};
use crate::entropy;
use crate::name::{BlobName, ContainerName};
use crate::settings::metadata::Metadata;

/// Blobs in containers, with conditional writes and leases as in Azure Storage.
///
/// # Contract
/// - Reads see the newest acknowledged write. A put replaces the whole blob, content and metadata, at once.
/// - Conditions are checked and applied in one step: of many creators with [`Condition::IfAbsent`] exactly one wins.
/// - Writing or deleting a blob with an active lease needs its id; reading never does.
/// - Lease actions follow Azure's table ([lease states]); they change neither ETag nor content.
/// - Errors say whether the operation may have been applied ([`StoreError::is_ambiguous`]). The sections on errors below name
///   what the caller can act on; beside it, every operation may fail with `ContainerNotFound` or `BlobNotFound` if it needs
///   the container or blob, with `InvalidInput` for an argument outside its range, and with what any storage can meet:
///   `Unauthorized`, `Throttled`, `Timeout`, `Unavailable`, `Full`, `Corrupt`, `Stopped`, `Protocol`.
/// - Dropping a future leaves the operation applied or not applied, never half.
///
/// [lease states]: https://learn.microsoft.com/rest/api/storageservices/lease-blob
#[async_trait]
pub trait BlobStore: fmt::Debug + Send + Sync + 'static {
    /// Creates a container if it is missing.
    ///
    /// # Errors
    /// `ContainerBeingDeleted` for a while after a deletion. One that exists is no error.
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError>;

    /// Deletes a container with all its blobs, leased ones too.
    ///
    /// # Errors
    /// As the contract says.
    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError>;

    /// Writes a blob.
    ///
    /// # Errors
    /// `BlobAlreadyExists`, `ConditionNotMet` or `BlobNotFound` when the condition does not hold. `LeaseIdMissing` while there is an
    /// active lease and none is named, `LeaseIdMismatch` or `LeaseNotPresent` for one that is not the active one.
    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError>;

    /// Reads a blob of at most `max_bytes`; a longer one is refused with `TooLarge` before it is in memory.
    ///
    /// # Errors
    /// `TooLarge`, as said.
    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError>;

    /// What is known about a blob without its content.
    ///
    /// # Errors
    /// As the contract says.
    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError>;

    /// Deletes a blob. `lease` is needed while there is an active one.
    ///
    /// # Errors
    /// `LeaseIdMissing` while there is an active lease and none is named, `LeaseIdMismatch` or `LeaseNotPresent` for one that is
    /// not the active one.
    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError>;

    /// A page of blobs whose names begin with `prefix`, in order of name, after `marker`; at most 5,000.
    ///
    /// # Errors
    /// As the contract says; a prefix that no blob has is no error.
    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError>;

    /// Takes the lease, under an id the caller proposes: repeating the call with the same id is safe.
    ///
    /// # Errors
    /// `LeaseAlreadyPresent` while another holds it or it is being broken; services may say `LeaseBroken` of the latter.
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError>;

    /// Starts the lease's time anew; returns the id the storage names, which the caller must compare with its own.
    ///
    /// # Errors
    /// `LeaseIdMismatch` or `LeaseNotPresent` when it is not the caller's any more, `LeaseBroken` once it is being broken.
    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError>;

    /// Changes the lease's id.
    ///
    /// # Errors
    /// As of [`renew_lease`](Self::renew_lease).
    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError>;

    /// Gives the lease up, so that another can take it at once.
    ///
    /// # Errors
    /// As of [`renew_lease`](Self::renew_lease), but that a lease which is being broken can be released.
    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError>;

    /// Ends somebody's lease after `period` (0–60 s, or at its end if that is sooner; `None` lets a lease of finite
    /// duration run out); returns the time left.
    ///
    /// # Errors
    /// `LeaseNotPresent` if there is none.
    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError>;

    /// Tries out whether the caller may do with blobs in `container` what it is going to, and changes nothing. Neither
    /// container nor blobs need to exist. A storage without permissions of its own says yes.
    ///
    /// # Errors
    /// `Unauthorized`, naming the permissions that are missing; other kinds when the storage cannot be asked.
    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError>;

    /// A handle of its own for use on another runtime, sharing no connections with this one.
    fn detached(self: Arc<Self>) -> Arc<dyn BlobStore>;
}

/// A blob's version tag; changes with every write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ETag(Arc<str>);

impl ETag {
    /// A tag as the storage wrote it.
    pub fn new(tag: impl Into<Arc<str>>) -> Self {
        Self(tag.into())
    }

    /// The tag as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The id of a blob lease: a UUID. It is the right to write, and so `Debug` shows only its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(uuid::Uuid);

impl LeaseId {
    /// A new random id.
    pub fn random() -> Self {
        Self(entropy::uuid_v4())
    }

    /// An id from its UUID form; `None` if it is not one.
    pub fn parse(text: &str) -> Option<Self> {
        uuid::Uuid::try_parse(text).ok().map(Self)
    }

    /// The id as text, for the storage.
    pub fn expose(&self) -> String {
        self.0.to_string()
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({}…)", &self.0.simple().to_string()[..6])
    }
}

/// How long a blob lease lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseDuration {
    /// 15–60 whole seconds.
    Finite(Duration),
    /// Until it is released or broken.
    Infinite,
}

/// On what condition a blob is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Condition {
    /// On none.
    #[default]
    Always,
    /// If there is no blob of this name (`If-None-Match: *`).
    IfAbsent,
    /// If the blob's tag is this (`If-Match`).
    IfMatch(ETag),
}

/// How to write a blob.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PutBlob {
    /// On what condition.
    pub condition: Condition,
    /// The lease, while there is an active one.
    pub lease: Option<LeaseId>,
    /// The blob's metadata; names must be identifiers.
    pub metadata: Metadata,
}

impl PutBlob {
    /// Unconditional, without lease or metadata.
    pub fn new() -> Self {
        Self::default()
    }

    /// Only if there is no blob of this name.
    pub fn if_absent() -> Self {
        Self::new().with_condition(Condition::IfAbsent)
    }

    /// Content to be written only while the blob is the one with this tag.
    pub fn if_match(etag: ETag) -> Self {
        Self { condition: Condition::IfMatch(etag), ..Self::default() }
    }

    /// Sets the condition.
    #[must_use]
    pub fn with_condition(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// Sets the lease.
    #[must_use]
    pub fn with_lease(mut self, lease: LeaseId) -> Self {
        self.lease = Some(lease);
        self
    }

    /// Sets the metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }
}

/// Whether a blob is leased.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// It is not.
    Available,
    /// It is.
    Leased,
    /// It was, and its time is over.
    Expired,
    /// It is until a break takes effect.
    Breaking,
    /// It was until a break.
    Broken,
}

/// What is known about a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobProperties {
    /// Its length in bytes.
    pub length: u64,
    /// Its version tag.
    pub etag: ETag,
    /// When it was last written, by the storage's clock.
    pub modified: SystemTime,
    /// Its metadata.
    pub metadata: Metadata,
    /// Its lease.
    pub lease: LeaseState,
}

impl BlobProperties {
    /// Of a blob without metadata that nobody has leased.
    pub fn new(length: u64, etag: ETag, modified: SystemTime) -> Self {
        Self { length, etag, modified, metadata: Metadata::new(), lease: LeaseState::Available }
    }

    /// Sets the metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// Sets the state of its lease.
    #[must_use]
    pub fn with_lease(mut self, lease: LeaseState) -> Self {
        self.lease = lease;
        self
    }
}

/// A blob that was read.
#[derive(Clone)]
#[non_exhaustive]
pub struct Blob {
    /// Its content.
    pub data: Bytes,
    /// What is known about it.
    pub properties: BlobProperties,
}

impl Blob {
    /// A blob with the given values.
    pub fn new(data: Bytes, properties: BlobProperties) -> Self {
        Self { data, properties }
    }
}

/// Payloads are not shown.
impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blob").field("properties", &self.properties).finish_non_exhaustive()
    }
}

/// A page of a listing.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct BlobListing {
    /// Names within the container, and what is known about each.
    pub blobs: Vec<(String, BlobProperties)>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<String>,
}

impl BlobListing {
    /// The last page.
    pub fn new(blobs: Vec<(String, BlobProperties)>) -> Self {
        Self { blobs, next: None }
    }

    /// Sets where the next page begins; `None` after the last.
    #[must_use]
    pub fn with_next(mut self, marker: impl Into<Option<String>>) -> Self {
        self.next = marker.into();
        self
    }
}
