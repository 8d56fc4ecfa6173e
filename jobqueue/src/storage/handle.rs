//! The storage handle that the rest of the framework holds.

use std::fmt;
use std::sync::{Arc, OnceLock};

use super::instrumented::Instrumented;
use super::throttle::Throttle;
use super::{BlobStore, QueueStore};
use crate::event::{Event, Observers};
use crate::trace::Tracer;

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
    /// The listeners and the tracer of this handle, its clones, queues and workers.
    observers: Arc<Observers>,
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
        Self {
            queues,
            blobs,
            description: description.into(),
            throttle,
            apart: Arc::default(),
            observers: Arc::default(),
        }
    }

    /// Returns this storage with a listener, which is called for every [`Event`] of its queues and workers, and of the storage itself. The
    /// listener must return quickly. If it panics, that is logged and the work continues.
    ///
    /// Queues and workers that were made before, or of another clone, are not heard. With
    /// [`queues_of`](super::StorageBuilder::queues_of), listen to the storage that is built.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{Event, QueueMessage, Storage}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
    /// let storage = Storage::memory().on_event(|event| {
    ///     if let Event::Sent { queue, took, .. } = event {
    ///         println!("sent to {queue} in {took:?}");
    ///     }
    /// });
    /// storage.queue::<Mail>().await?.send(&Mail { to: "ada@example.org".into() }).await?;
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn on_event(self, listener: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        let mut only = Observers::default();
        only.add(listener);
        let (queues, blobs) = Instrumented::observed(&self, Arc::new(only.clone()));
        self.wrapped(queues, blobs).heard_by(only)
    }

    /// Returns this storage with a tracer, which makes the spans of its queues and workers. It replaces an earlier one.
    #[must_use]
    pub fn with_tracer(mut self, tracer: Arc<dyn Tracer>) -> Self {
        Arc::make_mut(&mut self.observers).set_tracer(tracer);
        self
    }

    /// Returns this storage with listeners that do not hear its requests.
    pub(crate) fn heard_by(mut self, listeners: Observers) -> Self {
        Arc::make_mut(&mut self.observers).add_all(listeners);
        self
    }

    /// Returns the listeners and the tracer.
    pub(crate) fn observers(&self) -> &Arc<Observers> {
        &self.observers
    }

    /// Returns this storage behind wrappers of its halves: the same load, under the same description.
    pub(super) fn wrapped(&self, queues: Arc<dyn QueueStore>, blobs: Arc<dyn BlobStore>) -> Self {
        Self {
            queues,
            blobs,
            description: Arc::clone(&self.description),
            throttle: Arc::clone(&self.throttle),
            apart: Arc::default(),
            observers: Arc::clone(&self.observers),
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
            observers: Arc::clone(&self.observers),
        }
    }

    /// Returns the load of the storage, for callers that can wait.
    pub(crate) fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Returns the load, for a wrapper.
    pub(super) fn shared_throttle(&self) -> &Arc<Throttle> {
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
