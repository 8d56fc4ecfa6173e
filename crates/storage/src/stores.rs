//! The two halves of a storage, as an adapter returns them.

use std::future::Future;
use std::sync::Arc;

use super::{
    Access, BlobLeases, BlobPowers, BlobStore, Intercepted, Interceptor, QueueStore, Queues, StoreError,
    StoreErrorKind,
};
use crate::name::ContainerName;
use crate::runtime::Runtime;

/// The queues and the blobs of a storage with their powers, under one description. Cheap to clone; all clones
/// use the same storage.
///
/// An adapter returns this type, and `jobqueue::Storage` is made from it.
#[derive(Clone)]
#[non_exhaustive]
pub struct Stores {
    /// The queues.
    pub queues: Arc<Queues>,
    /// The blobs.
    pub blobs: Arc<dyn BlobStore>,
    /// The powers of the blobs.
    pub blob_powers: Arc<BlobPowers>,
    /// The name of the storage for logs, without secrets: `memory`, `sqlite:PATH`,
    /// `postgres:HOST:PORT/DATABASE/SCHEMA`, `azure:ACCOUNT`.
    pub description: Arc<str>,
    /// The clock, random numbers and tasks of everything built on the storage.
    pub runtime: Runtime,
}

impl Stores {
    /// Returns a storage made of its two halves, and asks both for their powers, once. Logs show
    /// `description`, which must not contain secrets.
    pub fn new(
        queues: Arc<dyn QueueStore>,
        blobs: Arc<dyn BlobStore>,
        description: impl Into<Arc<str>>,
    ) -> Self {
        Self {
            queues: Arc::new(Queues::new(queues)),
            blob_powers: Arc::new(Arc::clone(&blobs).powers()),
            blobs,
            description: description.into(),
            runtime: Runtime::new(),
        }
    }

    setters! {
        /// Returns the storage with another runtime for everything built on it.
        with_runtime(runtime: Runtime);
    }

    /// Returns this storage with an interceptor around all its operations.
    #[must_use]
    pub fn intercepted<I: Interceptor>(&self, interceptor: &Arc<I>) -> Self {
        Self::new(
            Intercepted::queues(Arc::clone(self.queues.store()), interceptor),
            Intercepted::blobs(Arc::clone(&self.blobs), interceptor),
            Arc::clone(&self.description),
        )
        .with_runtime(self.runtime.clone())
    }

    /// Returns the store's power to lease blobs.
    ///
    /// # Errors
    /// `Unsupported` if the storage has none.
    pub fn leases(&self) -> Result<&Arc<dyn BlobLeases>, StoreError> {
        self.blob_powers.leases.as_ref().ok_or_else(|| {
            StoreError::new(StoreErrorKind::Unsupported, "lease blob", &self.description)
                .with_detail("this storage has no leases of blobs, which leaders, schedules and sweeps need")
        })
    }

    /// Checks whether the caller has the permissions for `access` to the blobs of a container. A storage
    /// without permissions grants everything.
    ///
    /// # Errors
    /// `Unauthorized`, naming the missing permissions; other kinds if the storage cannot be asked.
    pub async fn check_blob_access(
        &self,
        container: &ContainerName,
        access: Access,
    ) -> Result<(), StoreError> {
        match &self.blob_powers.permissions {
            Some(permissions) => permissions.check_access(container, access).await,
            None => Ok(()),
        }
    }

    /// Returns the same storage over separate connections, for use on another runtime.
    #[must_use]
    pub fn detached(&self) -> Self {
        let (queues, blobs) = (&self.queues.powers().detach, &self.blob_powers.detach);
        let queues =
            queues.as_ref().map_or_else(|| Arc::clone(self.queues.store()), |queues| queues.detached());
        let blobs = blobs.as_ref().map_or_else(|| Arc::clone(&self.blobs), |blobs| blobs.detached());
        Self::new(queues, blobs, Arc::clone(&self.description)).with_runtime(self.runtime.clone())
    }
}

debug_fields! {
    Stores(description)
}

/// The options of an adapter, which open its storage. `jobqueue::Storage::open` accepts any of them.
pub trait OpenStores {
    /// Opens the storage.
    ///
    /// # Errors
    /// [`Configuration`](super::StoreErrorKind::Configuration) if the options contradict each other; other
    /// kinds if the storage cannot be opened.
    fn open(self) -> impl Future<Output = Result<Stores, StoreError>> + Send;
}
