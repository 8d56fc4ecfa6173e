//! The storage handle that the rest of the framework holds.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::instrumented::Instrumented;
use super::throttle::Throttle;
use super::{BlobStore, QueueStore};

/// A storage: queues and blobs in one place. Cheap to clone; all clones use the same storage.
///
/// [`Storage::connect`] opens one from a string, [`Storage::memory`] opens one in memory, and [`Storage::new`] wraps
/// your own adapter.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::Storage;
///
/// // From an argument or an environment variable: `sqlite:jobs.db`, or an Azure connection string.
/// let storage = Storage::connect("memory:").await?;
/// assert!(storage.description().starts_with("memory"));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Storage {
    queues: Arc<dyn QueueStore>,
    blobs: Arc<dyn BlobStore>,
    description: Arc<str>,
    /// The load that the queues' answers show; all clones share it.
    throttle: Arc<Throttle>,
    /// Queues and blobs over separate connections; all clones share them.
    apart: Arc<Apart>,
}

#[derive(Default)]
struct Apart {
    queues: OnceLock<Arc<dyn QueueStore>>,
    blobs: OnceLock<Arc<dyn BlobStore>>,
}

impl Storage {
    /// Returns a storage made of its two halves. Logs show `description`; it must not contain secrets.
    pub fn new(
        queues: Arc<dyn QueueStore>,
        blobs: Arc<dyn BlobStore>,
        description: impl Into<Arc<str>>,
    ) -> Self {
        let throttle = Arc::new(Throttle::new(queues.throttles_by_shard()));
        let queues = Arc::new(Instrumented::measured(queues, Arc::clone(&throttle)));
        Self { queues, blobs, description: description.into(), throttle, apart: Arc::default() }
    }

    /// Returns this storage behind wrappers of its halves: the same load, under the same description.
    pub(super) fn wrapped(&self, queues: Arc<dyn QueueStore>, blobs: Arc<dyn BlobStore>) -> Self {
        Self {
            queues,
            blobs,
            description: Arc::clone(&self.description),
            throttle: Arc::clone(&self.throttle),
            apart: Arc::default(),
        }
    }

    /// Returns the queues.
    pub fn queues(&self) -> &Arc<dyn QueueStore> {
        &self.queues
    }

    /// Returns the blobs.
    pub fn blobs(&self) -> &Arc<dyn BlobStore> {
        &self.blobs
    }

    /// Returns the name of this storage without secrets: `memory`, `sqlite:PATH`, `azure:ACCOUNT`.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns the same storage over connections of its own, for use on another runtime.
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

    /// Returns the load of the storage, for callers that can wait.
    pub(crate) fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Returns the queues over separate connections, for the runtime of the lease renewer; the same for all clones.
    pub(crate) fn queues_apart(&self) -> Arc<dyn QueueStore> {
        Arc::clone(self.apart.queues.get_or_init(|| Arc::clone(&self.queues).detached()))
    }

    /// Returns the blobs over separate connections; the same for all clones.
    pub(crate) fn blobs_apart(&self) -> Arc<dyn BlobStore> {
        Arc::clone(self.apart.blobs.get_or_init(|| Arc::clone(&self.blobs).detached()))
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Storage").field(&self.description).finish()
    }
}
