//! The blob half of the storage port.

use std::fmt;
use std::path::Path;
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
/// - Lease actions follow Azure's table ([lease states]). They change neither ETag nor content.
/// - Errors say whether the operation may have been applied ([`StoreError::is_ambiguous`]). The `# Errors` sections
///   below name the kinds that the caller can act on. In addition, every operation may fail with `ContainerNotFound` or
///   `BlobNotFound` if it needs the container or blob, with `InvalidInput` for an argument outside its range, and with
///   the kinds that any storage can return: `Unauthorized`, `Throttled`, `Timeout`, `Unavailable`, `Full`, `Corrupt`,
///   `Stopped`, `Protocol`.
/// - Dropping a future leaves the operation applied or not applied, never half.
///
/// [lease states]: https://learn.microsoft.com/rest/api/storageservices/lease-blob
#[async_trait]
pub trait BlobStore: fmt::Debug + Send + Sync + 'static {
    /// Creates a container if it is missing.
    ///
    /// # Errors
    /// `ContainerBeingDeleted` for a while after a deletion. A container that exists is not an error.
    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError>;

    /// Deletes a container with all its blobs, leased ones too.
    ///
    /// # Errors
    /// Only those of the contract.
    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError>;

    /// Writes a blob.
    ///
    /// # Errors
    /// `BlobAlreadyExists`, `ConditionNotMet` or `BlobNotFound` when the condition does not hold. `LeaseIdMissing` if
    /// the blob has an active lease and the call names none; `LeaseIdMismatch` or `LeaseNotPresent` if the named lease
    /// is not the active one.
    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError>;

    /// Reads a blob of at most `max_bytes` bytes. A longer one is refused before its content is loaded into memory.
    ///
    /// # Errors
    /// `TooLarge` for a blob of more than `max_bytes` bytes.
    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError>;

    /// Returns the properties of a blob without its content.
    ///
    /// # Errors
    /// Only those of the contract.
    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError>;

    /// Deletes a blob. The call must name the `lease` if the blob has an active one.
    ///
    /// # Errors
    /// `LeaseIdMissing` if the blob has an active lease and the call names none; `LeaseIdMismatch` or `LeaseNotPresent`
    /// if the named lease is not the active one.
    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError>;

    /// Returns a page of at most 5,000 blobs whose names begin with `prefix`, in order of name, after `marker`.
    ///
    /// # Errors
    /// Only those of the contract. A prefix that no blob has is not an error.
    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError>;

    /// Takes the lease under an id that the caller proposes. Repeating the call with the same id is safe.
    ///
    /// # Errors
    /// `LeaseAlreadyPresent` while another holder has the lease or it is being broken; some services return
    /// `LeaseBroken` in the latter case.
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError>;

    /// Restarts the lease's duration; returns the id that the storage names. The caller must compare it with its own.
    ///
    /// # Errors
    /// `LeaseIdMismatch` or `LeaseNotPresent` when the lease is no longer the caller's, `LeaseBroken` once it is being
    /// broken.
    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError>;

    /// Changes the lease's id.
    ///
    /// # Errors
    /// Those of [`renew_lease`](Self::renew_lease).
    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError>;

    /// Releases the lease, so that another holder can take it at once.
    ///
    /// # Errors
    /// Those of [`renew_lease`](Self::renew_lease). A lease that is being broken can be released.
    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError>;

    /// Ends the lease of any holder after `period`; returns the time left. The period is 0–60 s and never longer than
    /// the rest of the lease; `None` lets a lease of finite duration run out.
    ///
    /// # Errors
    /// `LeaseNotPresent` if the blob has no lease.
    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError>;

    /// Checks whether the caller has the permissions for `access` to blobs in `container`, and changes nothing. Neither
    /// the container nor blobs need to exist. The default returns `Ok`, as a storage without permissions does.
    ///
    /// # Errors
    /// `Unauthorized`, naming the missing permissions; other kinds when the storage cannot be asked.
    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        let _ = (container, access);
        Ok(())
    }

    /// Returns the SQLite file that holds the blobs, so that they can be written in a transaction on it. `None`, the
    /// default, for every other storage.
    fn file(&self) -> Option<&Path> {
        None
    }

    /// Returns a handle for use on another runtime. It shares no connections with this one.
    fn detached(self: Arc<Self>) -> Arc<dyn BlobStore>;
}

/// The version tag of a blob. It changes with every write.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ETag(Arc<str>);

impl ETag {
    /// Returns a tag with the text that the storage wrote.
    pub fn new(tag: impl Into<Arc<str>>) -> Self {
        Self(tag.into())
    }

    /// Returns the tag as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The id of a blob lease: a UUID. It grants the right to write, so `Debug` shows only its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(uuid::Uuid);

impl LeaseId {
    /// Returns a new random id.
    pub fn random() -> Self {
        Self(entropy::uuid_v4())
    }

    /// Parses an id from its UUID form; returns `None` for other text.
    pub fn parse(text: &str) -> Option<Self> {
        uuid::Uuid::try_parse(text).ok().map(Self)
    }

    /// Returns the id as text, for the storage. Do not log it.
    pub fn expose(&self) -> String {
        self.0.to_string()
    }
}

impl fmt::Debug for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseId({}…)", &self.0.simple().to_string()[..6])
    }
}

/// The duration of a blob lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseDuration {
    /// A duration of 15–60 whole seconds.
    Finite(Duration),
    /// No end: the lease lasts until it is released or broken.
    Infinite,
}

/// The condition on which a blob is written.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Condition {
    /// The blob is always written.
    #[default]
    Always,
    /// The blob is written if none of this name exists (`If-None-Match: *`).
    IfAbsent,
    /// The blob is written if its tag is this one (`If-Match`).
    IfMatch(ETag),
}

/// The options of a blob write.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct PutBlob {
    /// The condition of the write.
    pub condition: Condition,
    /// The id of the blob's active lease, if it has one.
    pub lease: Option<LeaseId>,
    /// The blob's metadata. Names must be identifiers.
    pub metadata: Metadata,
}

impl PutBlob {
    /// Returns the options of an unconditional write without lease or metadata.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the options of a write that creates a blob and never replaces one.
    pub fn if_absent() -> Self {
        Self::new().with_condition(Condition::IfAbsent)
    }

    /// Returns the options of a write that replaces the blob only while its tag is `etag`.
    pub fn if_match(etag: ETag) -> Self {
        Self { condition: Condition::IfMatch(etag), ..Self::default() }
    }

    /// Sets the condition.
    #[must_use]
    pub fn with_condition(mut self, condition: Condition) -> Self {
        self.condition = condition;
        self
    }

    /// Sets the id of the active lease.
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

/// The state of a blob's lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// The blob has no lease.
    Available,
    /// The blob has an active lease.
    Leased,
    /// The lease has expired.
    Expired,
    /// The lease is active until a break takes effect.
    Breaking,
    /// A break has ended the lease.
    Broken,
}

/// The properties of a blob.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlobProperties {
    /// The length in bytes.
    pub length: u64,
    /// The version tag.
    pub etag: ETag,
    /// The time of the last write, by the storage's clock.
    pub modified: SystemTime,
    /// The blob's metadata.
    pub metadata: Metadata,
    /// The state of the blob's lease.
    pub lease: LeaseState,
}

impl BlobProperties {
    /// Returns the properties of a blob without metadata and without lease.
    pub fn new(length: u64, etag: ETag, modified: SystemTime) -> Self {
        Self { length, etag, modified, metadata: Metadata::new(), lease: LeaseState::Available }
    }

    /// Sets the metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Metadata) -> Self {
        self.metadata = metadata;
        self
    }

    /// Sets the state of the lease.
    #[must_use]
    pub fn with_lease(mut self, lease: LeaseState) -> Self {
        self.lease = lease;
        self
    }
}

/// A blob with its content.
#[derive(Clone)]
#[non_exhaustive]
pub struct Blob {
    /// The content.
    pub data: Bytes,
    /// The properties.
    pub properties: BlobProperties,
}

impl Blob {
    /// Returns a blob with the given values.
    pub fn new(data: Bytes, properties: BlobProperties) -> Self {
        Self { data, properties }
    }
}

/// Shows no payload.
impl fmt::Debug for Blob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blob").field("properties", &self.properties).finish_non_exhaustive()
    }
}

/// A page of a listing.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct BlobListing {
    /// The blobs of the page: the name within the container, and the properties.
    pub blobs: Vec<(String, BlobProperties)>,
    /// The marker of the next page; `None` after the last.
    pub next: Option<String>,
    /// The time at which the storage made the page, by the clock that also tells when blobs were modified; `None` if it does not tell.
    pub now: Option<SystemTime>,
}

impl BlobListing {
    /// Returns a last page.
    pub fn new(blobs: Vec<(String, BlobProperties)>) -> Self {
        Self { blobs, next: None, now: None }
    }

    /// Sets the marker of the next page; `None` after the last.
    #[must_use]
    pub fn with_next(mut self, marker: impl Into<Option<String>>) -> Self {
        self.next = marker.into();
        self
    }

    /// Sets the time at which the storage made the page.
    #[must_use]
    pub fn with_now(mut self, now: impl Into<Option<SystemTime>>) -> Self {
        self.now = now.into();
        self
    }
}
