//! The power of blob stores to grant leases.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;

use crate::StoreError;
use crate::name::BlobName;
use crate::runtime::Runtime;

/// A storage that grants exclusive leases of blobs.
///
/// # Contract
/// The actions follow Azure's table ([lease states]), and change neither ETag nor content. While a lease is active, writing
/// or deleting its blob needs its id, and reading never does. Leaders and schedules hold such leases, so without this power
/// they fail with [`Unsupported`](crate::StoreErrorKind::Unsupported); the sweep of payloads then leaves blobs in
/// place that a new message may use again.
///
/// [lease states]: https://learn.microsoft.com/rest/api/storageservices/lease-blob
#[async_trait]
pub trait BlobLeases: fmt::Debug + Send + Sync + 'static {
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
}

/// The id of a blob lease: a UUID. It grants the right to write, so `Debug` shows only its beginning.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct LeaseId(uuid::Uuid);

impl LeaseId {
    /// Returns a new random id.
    pub fn random(runtime: &Runtime) -> Self {
        Self(runtime.uuid_v4())
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
