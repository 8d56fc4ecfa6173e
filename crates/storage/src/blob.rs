//! The blob half of the storage port.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;
use bytes::Bytes;

use super::{
    BlobLeases, Detach, JournalStore, LeaseId, Metadata, Permissions, StoreError, StoreErrorKind,
    TransactionPlace,
};
use crate::name::{BlobName, ContainerName};

/// Blobs in containers, with conditional writes as in Azure Storage.
///
/// # Contract
/// - Reads see the newest acknowledged write. A put replaces the whole blob, content and metadata, at once.
/// - Conditions are checked and applied in one step: of many creators with [`Condition::IfAbsent`] exactly
///   one wins.
/// - Writing or deleting a blob with an active lease needs the lease's id; reading never does. Leases are a
///   separate power, [`BlobLeases`]; without it no blob has a lease, and a call that names one fails with
///   `LeaseNotPresent`.
/// - Errors say whether the operation may have been applied ([`StoreError::is_ambiguous`]). The `# Errors`
///   sections below name the kinds that the caller can act on. In addition, every operation may fail with
///   `ContainerNotFound` or `BlobNotFound` if it needs the container or blob, with `InvalidInput` for an
///   argument outside its range, and with the kinds that any storage can return: `Unauthorized`, `Throttled`,
///   `Timeout`, `Unavailable`, `Full`, `Corrupt`, `Stopped`, `Protocol`.
/// - Dropping a future leaves the operation applied or not applied, never half.
/// - Every further ability of a storage is a separate trait, which [`powers`](Self::powers) returns: see
///   [`BlobPowers`].
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
    /// Only the errors of the contract.
    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError>;

    /// Writes a blob.
    ///
    /// # Errors
    /// `BlobAlreadyExists`, `ConditionNotMet` or `BlobNotFound` when the condition does not hold.
    /// `LeaseIdMissing` if the blob has an active lease and the call names none; `LeaseIdMismatch` or
    /// `LeaseNotPresent` if the named lease is not the active one.
    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError>;

    /// Reads a blob of at most `max_bytes` bytes. A longer one is refused before its content is loaded into
    /// memory.
    ///
    /// # Errors
    /// `TooLarge` for a blob of more than `max_bytes` bytes.
    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError>;

    /// Returns the properties of a blob without its content.
    ///
    /// # Errors
    /// Only the errors of the contract.
    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError>;

    /// Deletes a blob. If the blob has an active lease, the call must name it as `lease`.
    ///
    /// # Errors
    /// `LeaseIdMissing` if the blob has an active lease and the call names none; `LeaseIdMismatch` or
    /// `LeaseNotPresent` if the named lease is not the active one.
    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError>;

    /// Returns a page of at most 5,000 blobs whose names begin with `prefix`, in order of name, after
    /// `marker`.
    ///
    /// # Errors
    /// Only the errors of the contract. A prefix that no blob has is not an error.
    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError>;

    /// Returns the powers of this storage; none by default. Called once when [`Stores`](super::Stores) are
    /// made, not for each operation.
    fn powers(self: Arc<Self>) -> BlobPowers {
        BlobPowers::default()
    }
}

/// The powers of a blob store. `default()` has none; see [`QueuePowers`](super::QueuePowers) for how adapters
/// and wrappers use it.
#[derive(Debug, Clone, Default)]
pub struct BlobPowers {
    /// Grants leases of blobs.
    pub leases: Option<Arc<dyn BlobLeases>>,
    /// Keeps the journal of ended jobs in a form of the storage's choice, such as a table.
    pub journal: Option<Arc<dyn JournalStore>>,
    /// Checks permissions for the blobs of a container.
    pub permissions: Option<Arc<dyn Permissions<ContainerName>>>,
    /// Opens separate connections for another runtime.
    pub detach: Option<Arc<dyn Detach<dyn BlobStore>>>,
    /// The database that holds the blobs. A transaction on this database can write them.
    pub transaction_place: Option<TransactionPlace>,
    /// The address of the blobs, without secrets: stores with the same address have the same blobs. `None` if
    /// the store has no address.
    pub address: Option<Arc<str>>,
    /// Identifies the store below all wrappers within this process. [`Intercepted`](crate::Intercepted) sets
    /// it.
    #[doc(hidden)]
    pub identity: Option<usize>,
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

/// The condition of a blob write.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Condition {
    /// The blob is always written.
    #[default]
    Always,
    /// The blob is written if no blob of this name exists (`If-None-Match: *`).
    IfAbsent,
    /// The blob is written if its tag equals this tag (`If-Match`).
    IfMatch(ETag),
}

impl Condition {
    /// Checks the condition against the tag of the present blob, if there is a blob.
    ///
    /// # Errors
    /// `BlobAlreadyExists` or `ConditionNotMet`.
    pub fn check(&self, present: Option<&ETag>) -> Result<(), StoreErrorKind> {
        match self {
            Self::IfAbsent if present.is_some() => Err(StoreErrorKind::BlobAlreadyExists),
            Self::IfMatch(tag) if present != Some(tag) => Err(StoreErrorKind::ConditionNotMet),
            _ => Ok(()),
        }
    }
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

    /// Returns the options of a write that creates a blob and never replaces an existing one.
    pub fn if_absent() -> Self {
        Self::new().with_condition(Condition::IfAbsent)
    }

    /// Returns the options of a write that replaces the blob only while its tag is `etag`.
    pub fn if_match(etag: ETag) -> Self {
        Self { condition: Condition::IfMatch(etag), ..Self::default() }
    }

    setters! {
        /// Sets the condition.
        with_condition(condition: Condition);

        /// Sets the id of the active lease.
        with_lease(lease: LeaseId);

        /// Sets the metadata.
        with_metadata(metadata: Metadata);
    }
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
    /// True if the blob has an active lease.
    pub is_leased: bool,
}

impl BlobProperties {
    /// Returns the properties of a blob without metadata and without lease.
    pub fn new(length: u64, etag: ETag, modified: SystemTime) -> Self {
        Self { length, etag, modified, metadata: Metadata::new(), is_leased: false }
    }

    setters! {
        /// Sets the metadata.
        with_metadata(metadata: Metadata);

        /// Sets whether the blob has an active lease.
        with_active_lease(is_leased: bool);
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

debug_fields! {
    /// Shows no payload.
    Blob { properties }
}

/// A page of a listing.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct BlobListing {
    /// The blobs of the page: the name within the container, and the properties.
    pub blobs: Vec<(String, BlobProperties)>,
    /// The marker of the next page; `None` after the last.
    pub next: Option<String>,
    /// The storage's time of the page, by the clock that also stamps modifications of blobs; `None` if the
    /// storage returns no time.
    pub now: Option<SystemTime>,
}

impl BlobListing {
    /// Returns a last page.
    pub fn new(blobs: Vec<(String, BlobProperties)>) -> Self {
        Self { blobs, next: None, now: None }
    }

    setters! {
        /// Sets the marker of the next page; `None` after the last.
        with_next(next from Option<String>);

        /// Sets the time at which the storage made the page.
        with_now(now from Option<SystemTime>);
    }
}
