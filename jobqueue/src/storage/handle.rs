//! The storage handle that the rest of the framework holds.

use std::sync::{Arc, LazyLock};

use tokio::sync::{Mutex, OnceCell};

use super::{
    BlobLeases, BlobPowers, BlobStore, OpenStores, QueueStore, Queues, StoreError, StoreErrorKind, Stores,
    Throttle,
};
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Observers};
use crate::runtime::Runtime;
use crate::trace::Tracer;

/// A storage: queues and blobs in one place. Cheap to clone; all clones use the same storage.
///
/// [`Storage::connect`] opens a storage from a string, [`Storage::open`] from the options of an adapter, and
/// [`Storage::memory`] in memory. [`Storage::new`] wraps your own adapter.
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
    stores: Stores,
    /// The load that the answers of the queues show, shared by all clones.
    throttle: Arc<Throttle>,
    /// The same storage over separate connections, shared by all clones, also by those with a listener.
    detached_stores: Arc<DetachedStores>,
    /// Set once the containers exist in which transactions of the application create blobs; shared by all
    /// clones.
    transaction_containers: Arc<OnceCell<()>>,
    /// Locked while a blob above the maximum payload size is copied, so that only one such blob is in memory;
    /// shared by all clones.
    copying: Arc<Mutex<()>>,
    /// The listeners and the tracer of this handle, its clones, queues and workers.
    observers: Arc<Observers>,
}

/// A storage that is opened at its first use.
type DetachedStores = LazyLock<Stores, Box<dyn FnOnce() -> Stores + Send>>;

impl Storage {
    /// Returns a storage made of its two halves. Logs show `description`; it must not contain secrets.
    pub fn new(
        queues: Arc<dyn QueueStore>,
        blobs: Arc<dyn BlobStore>,
        description: impl Into<Arc<str>>,
    ) -> Self {
        Stores::new(queues, blobs, description).into()
    }

    /// Opens the storage that the options of an adapter describe: `sqlite::Options`, `azure::Options`, or the
    /// options of your own adapter.
    ///
    /// ```no_run
    /// # async fn open() -> Result<(), jobqueue::Error> {
    /// use jobqueue::{Storage, sqlite};
    /// use std::time::Duration;
    ///
    /// let options = sqlite::Options::new("jobs.db").busy_timeout(Duration::from_secs(30));
    /// let storage = Storage::open(options).await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Configuration`](crate::ErrorKind::Configuration) when the options are wrong,
    /// [`Storage`](crate::ErrorKind::Storage) when the storage cannot be opened. The source is the
    /// [`StoreError`] of the adapter.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing stays open; a SQLite file may have been created.
    pub async fn open(options: impl OpenStores) -> Result<Self, Error> {
        options.open().await.map(Self::from).map_err(not_opened)
    }

    /// Returns a storage with these queues, and with the blobs of another storage.
    ///
    /// All processes that use the queues must use the same blobs: large payloads, leases of leaders, batches
    /// and FIFO groups are there. Storages that have different queues under one name must not share blobs,
    /// because these records are found by the name of the queue. Nor may numbers of messages come again
    /// within 30 days, as after the restore of a database or file without its blobs: where a message that
    /// cannot be read, or has no envelope, has the number of one whose dead letter was redriven or purged, it
    /// may be deleted as a copy of that one. Set the sequences of a restored database beyond the former
    /// numbers.
    ///
    /// [Sweep](crate::maintenance::sweep) the blobs through the storage that has the queues: the one that
    /// lends its blobs does not see the messages and dead letters of these queues.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use jobqueue::Storage;
    ///
    /// let (fast, durable) = (Storage::memory(), Storage::memory());
    /// let storage = fast.with_blobs_of(&durable);
    /// assert_eq!(storage.description(), "memory + blobs of memory");
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn with_blobs_of(&self, blobs: &Self) -> Self {
        let description = format!("{} + blobs of {}", self.description(), blobs.description());
        Self::new(Arc::clone(self.queues().store()), Arc::clone(blobs.blobs()), description)
            .with_runtime(self.runtime().clone())
    }

    /// Returns this storage with a listener, which is called for every [`Event`] of its queues and workers,
    /// and of the storage itself. The listener must return quickly. If it panics, the panic is logged and the
    /// work continues.
    ///
    /// Queues and workers created before, or from another clone, are not observed. With
    /// [`with_blobs_of`](Self::with_blobs_of), listen to the storage that it returns.
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
        let (observer, throttle) = (Arc::new(only.clone()), Arc::clone(&self.throttle));
        let observed =
            move |stores: &Stores| stores.observed(Arc::clone(&observer) as _, Arc::clone(&throttle));
        let (stores, detached_stores) = (observed(&self.stores), Arc::clone(&self.detached_stores));
        Self { stores, detached_stores: when_needed(move || observed(&detached_stores)), ..self }
            .observed_by(only)
    }

    /// Returns this storage with a tracer, which creates the spans of its queues and workers. It replaces an
    /// earlier tracer.
    #[must_use]
    pub fn with_tracer(mut self, tracer: Arc<dyn Tracer>) -> Self {
        Arc::make_mut(&mut self.observers).set_tracer(tracer);
        self
    }

    /// Returns this storage with listeners that do not receive its request events.
    pub(crate) fn observed_by(mut self, listeners: Observers) -> Self {
        Arc::make_mut(&mut self.observers).add_all(listeners);
        self
    }

    pub(crate) fn transaction_containers(&self) -> &OnceCell<()> {
        &self.transaction_containers
    }

    pub(crate) fn copying(&self) -> &Arc<Mutex<()>> {
        &self.copying
    }

    pub(crate) fn observers(&self) -> &Arc<Observers> {
        &self.observers
    }

    /// Returns the two halves of this storage.
    pub fn stores(&self) -> &Stores {
        &self.stores
    }

    /// Returns the queues.
    pub fn queues(&self) -> &Arc<Queues> {
        &self.stores.queues
    }

    /// Returns the blobs.
    pub fn blobs(&self) -> &Arc<dyn BlobStore> {
        &self.stores.blobs
    }

    /// Returns the powers of the blobs.
    pub fn blob_powers(&self) -> &BlobPowers {
        &self.stores.blob_powers
    }

    /// Returns whether `other` keeps its blobs or its queues elsewhere, judged by names: another name of the
    /// same server counts as another storage, as it does for transactions.
    pub(crate) fn is_other_than(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(Self::blob_powers);
        let names = |powers: &BlobPowers| (powers.transaction_place.clone(), powers.address.clone());
        let has_other_blobs = own.identity != others.identity && names(own) != names(others);
        // A storage may have borrowed the blobs of the other one.
        let queues = |storage: &Self| {
            let place = storage.queues().powers().transaction_place.clone();
            place.ok_or_else(|| storage.description().to_owned())
        };
        has_other_blobs || queues(self) != queues(other)
    }

    /// Returns the leases of the blobs.
    ///
    /// # Errors
    /// `Unsupported` if the storage has no leases.
    pub fn leases(&self) -> Result<&Arc<dyn BlobLeases>, StoreError> {
        self.stores.leases()
    }

    jobqueue_storage::setters! {
        /// Returns the same storage with another runtime for everything that is built on it: queues, workers,
        /// leaders, batches. The adapter keeps the runtime with which it was opened.
        ///
        /// ```
        /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
        /// use jobqueue::clock::ManualClock;
        /// use jobqueue::{Runtime, Storage};
        /// use std::sync::Arc;
        ///
        /// let runtime = Runtime::new().with_clock(Arc::new(ManualClock::new()));
        /// let storage = Storage::memory().with_runtime(runtime);
        /// # drop(storage);
        /// # Ok(()) }
        /// ```
        with_runtime(runtime: Runtime) => stores.runtime;
    }

    /// Returns the runtime: the clock, random numbers and tasks of everything that is built on this storage.
    pub fn runtime(&self) -> &Runtime {
        &self.stores.runtime
    }

    /// Returns the name of this storage without secrets: `memory`, `sqlite:PATH`,
    /// `postgres:HOST:PORT/DATABASE/SCHEMA`, `azure:ACCOUNT`.
    pub fn description(&self) -> &str {
        &self.stores.description
    }

    /// Returns the same storage over new connections, for use on another runtime.
    #[must_use]
    pub fn detached(&self) -> Self {
        let stores = self.stores.detached();
        Self { detached_stores: detach_when_needed(&stores), stores, ..self.clone() }
    }

    /// Returns the measured load of the storage, for callers that can wait.
    pub(crate) fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Returns this storage over separate connections, for the runtime of the lease renewer; the same for all
    /// clones.
    pub(crate) fn detached_stores(&self) -> &Stores {
        &self.detached_stores
    }

    /// Returns the queues over separate connections.
    pub(crate) fn detached_queues(&self) -> Arc<Queues> {
        Arc::clone(&self.detached_stores().queues)
    }

    /// Returns the blobs over separate connections.
    pub(crate) fn detached_blobs(&self) -> Arc<dyn BlobStore> {
        Arc::clone(&self.detached_stores().blobs)
    }
}

/// Wraps the stores: their load is measured, and a panic of the adapter counts as a lost answer.
impl From<Stores> for Storage {
    fn from(stores: Stores) -> Self {
        let (stores, throttle) = stores.measured();
        Self {
            detached_stores: detach_when_needed(&stores),
            stores,
            throttle,
            transaction_containers: Arc::default(),
            copying: Arc::default(),
            observers: Arc::default(),
        }
    }
}

fn detach_when_needed(stores: &Stores) -> Arc<DetachedStores> {
    let stores = stores.clone();
    when_needed(move || stores.detached())
}

fn when_needed(make: impl FnOnce() -> Stores + Send + 'static) -> Arc<DetachedStores> {
    Arc::new(LazyLock::new(Box::new(make)))
}

impl AsRef<Stores> for Storage {
    fn as_ref(&self) -> &Stores {
        &self.stores
    }
}

impl From<Storage> for Stores {
    fn from(storage: Storage) -> Self {
        storage.stores
    }
}

impl From<&Storage> for Stores {
    fn from(storage: &Storage) -> Self {
        storage.stores.clone()
    }
}

jobqueue_storage::debug_fields! {
    Storage(stores.description)
}

/// Returns the error for a storage that cannot be opened. Wrong options are a configuration error, and so are
/// tables that the options forbid to make.
fn not_opened(cause: StoreError) -> Error {
    if matches!(cause.kind(), StoreErrorKind::Configuration | StoreErrorKind::NotPrepared) {
        return cause.into();
    }
    let retryable = cause.is_retryable();
    Error::new(ErrorKind::Storage, "the storage cannot be opened")
        .with_retryable(retryable)
        .with_source(cause)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::storage::{Detach, Interceptor, QueuePowers, TransactionPlace};

    /// Counts how often separate connections are opened for the queues.
    #[derive(Debug, Clone)]
    struct Counting {
        queues: Arc<dyn QueueStore>,
        made: Arc<AtomicUsize>,
    }

    impl Interceptor for Counting {
        fn queue_powers(&self, powers: QueuePowers) -> QueuePowers {
            QueuePowers { detach: Some(Arc::new(self.clone())), ..powers }
        }
    }

    impl Detach<dyn QueueStore> for Counting {
        fn detached(&self) -> Arc<dyn QueueStore> {
            self.made.fetch_add(1, Ordering::SeqCst);
            Arc::clone(&self.queues)
        }
    }

    #[tokio::test]
    async fn handles_with_listeners_share_the_separate_connections() {
        let stores = Stores::from(Storage::memory());
        let counting = Counting { queues: Arc::clone(stores.queues.store()), made: Arc::default() };
        let storage = Storage::from(stores.intercepted(&Arc::new(counting.clone())));
        let events = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&events);
        let observed = storage.clone().on_event(move |_| _ = counter.fetch_add(1, Ordering::SeqCst));
        for storage in [observed, storage.clone().on_event(|_| {}), storage] {
            storage.detached_queues().list_queues("").await.unwrap();
        }
        assert_eq!(counting.made.load(Ordering::SeqCst), 1);
        assert_eq!(events.load(Ordering::SeqCst), 1, "requests over separate connections are events too");
    }

    #[test]
    fn another_database_or_schema_is_another_storage() {
        let storage = |server: &str, database: &str, schema: &str| {
            let mut storage = Storage::memory();
            let place = TransactionPlace::schema(schema, format!("postgres:{server}/{database}/{schema}"));
            Arc::make_mut(&mut storage.stores.blob_powers).transaction_place = Some(place);
            storage
        };
        let own = storage("db:5432", "shop", "jobqueue");
        assert!(own.is_other_than(&storage("db:5432", "shop", "other")));
        assert!(own.is_other_than(&storage("db:5432", "billing", "jobqueue")));
        let mut same = storage("db:5432", "shop", "jobqueue");
        assert!(!own.is_other_than(&same));
        same.stores.description = "other queues with the blobs of the same".into();
        assert!(own.is_other_than(&same));
    }
}
