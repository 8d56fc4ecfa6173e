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
/// The actions follow Azure's table ([lease states]), and change neither ETag nor content. While a lease is
/// active, writing or deleting its blob needs the lease's id, and reading never does. An operator may break a
/// lease by other means; its renewals then fail with `LeaseBroken` or `LeaseNotPresent`. Leaders and
/// schedules hold such leases, so without this power they fail with
/// [`Unsupported`](crate::StoreErrorKind::Unsupported), and the sweep of payloads leaves blobs in place that
/// a new message may use again.
///
/// [lease states]: https://learn.microsoft.com/rest/api/storageservices/lease-blob
#[async_trait]
pub trait BlobLeases: fmt::Debug + Send + Sync + 'static {
    /// Takes the lease for 15–60 whole seconds, under an id that the caller proposes. It is safe to repeat
    /// the call with the same id.
    ///
    /// # Errors
    /// `LeaseAlreadyPresent` while another holder has the lease; `LeaseBroken` on some services while it is
    /// being broken.
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: Duration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError>;

    /// Restarts the lease's duration; returns the id that the storage names. The caller must compare it with
    /// the id that it holds.
    ///
    /// # Errors
    /// `LeaseIdMismatch` or `LeaseNotPresent` when the lease is no longer the caller's, `LeaseBroken` once it
    /// is being broken.
    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError>;

    /// Releases the lease, so that another holder can take it at once.
    ///
    /// # Errors
    /// As [`renew_lease`](Self::renew_lease). A lease that is being broken can be released.
    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError>;
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
