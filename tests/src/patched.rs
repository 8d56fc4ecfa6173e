//! The blobs of a storage with single operations changed, for tests of leaders.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use jobqueue::storage::{
    Access, Blob, BlobListing, BlobProperties, BlobStore, LeaseDuration, LeaseId, PutBlob, StoreError,
};
use jobqueue::storage::{BlobName, ContainerName};

/// Passes every call on, except for the changed ones.
#[derive(Clone)]
pub struct Patched {
    inner: Arc<dyn BlobStore>,
    taken: Option<Arc<dyn Fn(LeaseId) + Send + Sync>>,
    renews_anything: bool,
    apart: Option<Arc<dyn BlobStore>>,
}

impl Patched {
    /// Returns a store without changes.
    pub fn new(inner: &Arc<dyn BlobStore>) -> Self {
        Self { inner: Arc::clone(inner), taken: None, renews_anything: false, apart: None }
    }

    /// Reports the ids of acquired leases, which leaders keep to themselves.
    #[must_use]
    pub fn on_taken(mut self, tell: impl Fn(LeaseId) + Send + Sync + 'static) -> Self {
        self.taken = Some(Arc::new(tell));
        self
    }

    /// Renews any lease for anybody; only the returned id shows it.
    #[must_use]
    pub fn renewing_anything(mut self) -> Self {
        self.renews_anything = true;
        self
    }

    /// Sets the store for separate connections.
    #[must_use]
    pub fn apart(mut self, apart: &Arc<dyn BlobStore>) -> Self {
        self.apart = Some(Arc::clone(apart));
        self
    }
}

impl fmt::Debug for Patched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Patched").field(&self.inner).finish()
    }
}

#[async_trait]
impl BlobStore for Patched {
    async fn acquire_lease(
        &self,
        blob: &BlobName,
        duration: LeaseDuration,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        let taken = self.inner.acquire_lease(blob, duration, proposed).await?;
        if let Some(tell) = &self.taken {
            tell(taken);
        }
        Ok(taken)
    }

    fn detached(self: Arc<Self>) -> Arc<dyn BlobStore> {
        match &self.apart {
            Some(apart) => Arc::clone(apart),
            None => Arc::new(Self { inner: Arc::clone(&self.inner).detached(), ..(*self).clone() }),
        }
    }

    async fn create_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.inner.create_container(container).await
    }

    async fn delete_container(&self, container: &ContainerName) -> Result<(), StoreError> {
        self.inner.delete_container(container).await
    }

    async fn put_blob(
        &self,
        blob: &BlobName,
        data: Bytes,
        options: PutBlob,
    ) -> Result<BlobProperties, StoreError> {
        self.inner.put_blob(blob, data, options).await
    }

    async fn get_blob(&self, blob: &BlobName, max_bytes: u64) -> Result<Blob, StoreError> {
        self.inner.get_blob(blob, max_bytes).await
    }

    async fn blob_properties(&self, blob: &BlobName) -> Result<BlobProperties, StoreError> {
        self.inner.blob_properties(blob).await
    }

    async fn delete_blob(&self, blob: &BlobName, lease: Option<&LeaseId>) -> Result<(), StoreError> {
        self.inner.delete_blob(blob, lease).await
    }

    async fn list_blobs(
        &self,
        container: &ContainerName,
        prefix: &str,
        marker: Option<&str>,
    ) -> Result<BlobListing, StoreError> {
        self.inner.list_blobs(container, prefix, marker).await
    }

    async fn renew_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<LeaseId, StoreError> {
        match self.renews_anything {
            true => Ok(LeaseId::random()),
            false => self.inner.renew_lease(blob, lease).await,
        }
    }

    async fn change_lease(
        &self,
        blob: &BlobName,
        lease: &LeaseId,
        proposed: &LeaseId,
    ) -> Result<LeaseId, StoreError> {
        self.inner.change_lease(blob, lease, proposed).await
    }

    async fn release_lease(&self, blob: &BlobName, lease: &LeaseId) -> Result<(), StoreError> {
        self.inner.release_lease(blob, lease).await
    }

    async fn break_lease(&self, blob: &BlobName, period: Option<Duration>) -> Result<Duration, StoreError> {
        self.inner.break_lease(blob, period).await
    }

    async fn check_access(&self, container: &ContainerName, access: Access) -> Result<(), StoreError> {
        self.inner.check_access(container, access).await
    }
}
