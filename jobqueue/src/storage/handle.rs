//! The handle the rest of the framework holds.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::throttle::{Observed, Throttle};
use super::{BlobStore, QueueStore};

/// A place with queues and blobs. Cheap to clone; all clones are the same storage.
///
/// Made by [`Storage::connect`] from one string, by [`Storage::memory`], or from an adapter of your own by
/// [`Storage::new`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::Storage;
///
/// // From an argument or a variable of the environment: `sqlite:jobs.db`, a connection string of Azure.
/// let storage = Storage::connect("memory:").await?;
/// assert!(storage.description().starts_with("memory"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Storage {
    queues: Arc<dyn QueueStore>,
    blobs: Arc<dyn BlobStore>,
    description: Arc<str>,
    /// What the queues' answers say about the storage's load; one for all clones.
    throttle: Arc<Throttle>,
    /// Both through connections of their own; one for all clones.
    apart: Arc<Apart>,
}

#[derive(Default)]
struct Apart {
    queues: OnceLock<Arc<dyn QueueStore>>,
    blobs: OnceLock<Arc<dyn BlobStore>>,
}

impl Storage {
    /// A storage out of its two halves. `description` is shown in logs and must not contain secrets.
    pub fn new(
        queues: Arc<dyn QueueStore>,
        blobs: Arc<dyn BlobStore>,
        description: impl Into<Arc<str>>,
    ) -> Self {
        Self::under(Throttle::default(), queues, blobs, description.into())
    }

    /// A storage made of several, whose load is not one.
    pub(crate) fn of_shards(
        queues: Arc<dyn QueueStore>,
        blobs: Arc<dyn BlobStore>,
        description: impl Into<Arc<str>>,
    ) -> Self {
        Self::under(Throttle::of_shards(), queues, blobs, description.into())
    }

    fn under(
        throttle: Throttle,
        queues: Arc<dyn QueueStore>,
        blobs: Arc<dyn BlobStore>,
        description: Arc<str>,
    ) -> Self {
        let throttle = Arc::new(throttle);
        let queues = Arc::new(Observed::new(queues, Arc::clone(&throttle)));
        Self { queues, blobs, description, throttle, apart: Arc::default() }
    }

    /// The queues.
    pub fn queues(&self) -> &Arc<dyn QueueStore> {
        &self.queues
    }

    /// The blobs.
    pub fn blobs(&self) -> &Arc<dyn BlobStore> {
        &self.blobs
    }

    /// What storage this is, without secrets: `memory`, `sqlite:PATH`, `azure:ACCOUNT`.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// The same storage through connections of its own, for use on another runtime.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self {
            queues: Arc::clone(&self.queues).detached(),
            blobs: Arc::clone(&self.blobs).detached(),
            description: Arc::clone(&self.description),
            throttle: Arc::clone(&self.throttle),
            apart: Arc::default(),
        }
    }

    /// The load of the storage, for those who can wait.
    pub(crate) fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// The queues through connections of their own, for the lease keeper's runtime; the same for all clones.
    pub(crate) fn queues_apart(&self) -> Arc<dyn QueueStore> {
        Arc::clone(self.apart.queues.get_or_init(|| Arc::clone(&self.queues).detached()))
    }

    /// The same for the blobs.
    pub(crate) fn blobs_apart(&self) -> Arc<dyn BlobStore> {
        Arc::clone(self.apart.blobs.get_or_init(|| Arc::clone(&self.blobs).detached()))
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Storage").field(&self.description).finish()
    }
}
