//! The blobs of a storage with some operations changed, for tests of leaders.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jobqueue::Runtime;
use jobqueue::storage::{
    BlobLeases, BlobName, BlobPowers, BlobStore, Detach, Intercepted, Interceptor, LeaseId, Storage,
    StoreError,
};

/// Forwards every call except the changed ones.
#[derive(Clone, Default)]
pub struct Patched {
    taken: Option<Arc<dyn Fn(LeaseId) + Send + Sync>>,
    renews_anything: bool,
    detached: Option<Arc<dyn BlobStore>>,
}

impl Patched {
    /// Returns a store without changes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reports the ids of acquired leases, which leaders do not expose.
    #[must_use]
    pub fn on_taken(mut self, report: impl Fn(LeaseId) + Send + Sync + 'static) -> Self {
        self.taken = Some(Arc::new(report));
        self
    }

    /// Makes every renewal succeed, under whatever id. Only the returned id differs.
    #[must_use]
    pub fn renewing_anything(mut self) -> Self {
        self.renews_anything = true;
        self
    }

    /// Sets the store that a detached handle uses.
    #[must_use]
    pub fn detached(mut self, detached: &Arc<dyn BlobStore>) -> Self {
        self.detached = Some(Arc::clone(detached));
        self
    }

    /// Returns a storage with the queues of `queues` and the patched blobs of `blobs`.
    pub fn storage(self, queues: &Storage, blobs: &Storage) -> Storage {
        let blobs = Intercepted::blobs(Arc::clone(blobs.blobs()), &Arc::new(self));
        Storage::new(Arc::clone(queues.queues().store()), blobs, "patched")
    }
}

impl fmt::Debug for Patched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Patched").finish_non_exhaustive()
    }
}

impl Interceptor for Patched {
    fn blob_powers(&self, powers: BlobPowers) -> BlobPowers {
        let leases = powers.leases.map(|inner| Arc::new(PatchedLeases { inner, patched: self.clone() }) as _);
        let detach = self.detached.clone().map(|blobs| Arc::new(DetachedBlobs(blobs)) as _).or(powers.detach);
        BlobPowers { leases, detach, ..powers }
    }
}

#[derive(Debug)]
struct PatchedLeases {
    inner: Arc<dyn BlobLeases>,
    patched: Patched,
}

#[async_trait]
impl BlobLeases for PatchedLeases {
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: Duration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let taken = self.inner.acquire_lease(blob, duration, proposed).await?;
        if let Some(report) = &self.patched.taken {
            report(taken);
        }
        Ok(taken)
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        if self.patched.renews_anything {
            Ok(LeaseId::random(&Runtime::new()))
        } else {
            self.inner.renew_lease(blob, lease).await
        }
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        self.inner.release_lease(blob, lease).await
    }
}

#[derive(Debug)]
struct DetachedBlobs(Arc<dyn BlobStore>);

impl Detach<dyn BlobStore> for DetachedBlobs {
    fn detached(&self) -> Arc<dyn BlobStore> {
        Arc::clone(&self.0)
    }
}
