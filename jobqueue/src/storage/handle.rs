//! The storage handle that the rest of the framework holds.

use std::sync::{Arc, OnceLock};

use super::{
    BlobLeases, BlobPowers, BlobStore, OpenStores, QueueStore, Queues, StoreError, StoreErrorKind, Stores,
    Throttle, TransactionPlace,
};
use crate::error::{Error, ErrorKind};
use crate::event::{Event, Observers};
use crate::runtime::Runtime;
use crate::trace::Tracer;

/// A storage: queues and blobs in one place. Cheap to clone; all clones use the same storage.
///
/// [`Storage::connect`] opens one from a string, [`Storage::open`] by the options of an adapter, [`Storage::memory`] in
/// memory, and [`Storage::new`] wraps your own adapter.
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
    /// The load that the queues' answers show; all clones share it.
    throttle: Arc<Throttle>,
    /// The same storage over separate connections; all clones share it.
    apart: Arc<OnceLock<Stores>>,
    /// The listeners and the tracer of this handle, its clones, queues and workers.
    observers: Arc<Observers>,
}

impl Storage {
    /// Returns a storage made of its two halves. Logs show `description`; it must not contain secrets.
    pub fn new(
        queues: Arc<dyn QueueStore>,
        blobs: Arc<dyn BlobStore>,
        description: impl Into<Arc<str>>,
    ) -> Self {
        Stores::new(queues, blobs, description).into()
    }

    /// Opens the storage that the options of an adapter describe: `sqlite::Options`, `azure::Options`, or those of an
    /// adapter of your own.
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
    /// [`Configuration`](crate::ErrorKind::Configuration) when the options are wrong, [`Storage`](crate::ErrorKind::Storage)
    /// when the storage cannot be opened. The source is the [`StoreError`] of the adapter.
    ///
    /// # Cancel safety
    /// If the future is dropped, nothing stays open; a SQLite file may have been created.
    pub async fn open(options: impl OpenStores) -> Result<Self, Error> {
        options.open().await.map(Self::from).map_err(not_opened)
    }

    /// Returns this storage with a listener, which is called for every [`Event`] of its queues and workers, and of the storage itself. The
    /// listener must return quickly. If it panics, that is logged and the work continues.
    ///
    /// Queues and workers created before, or from another clone, are not observed. With
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
        let observed = self.stores.observed(Arc::new(only.clone()), Arc::clone(&self.throttle));
        self.wrapped(observed).heard_by(only)
    }

    /// Returns this storage with a tracer, which makes the spans of its queues and workers. It replaces an earlier one.
    #[must_use]
    pub fn with_tracer(mut self, tracer: Arc<dyn Tracer>) -> Self {
        Arc::make_mut(&mut self.observers).set_tracer(tracer);
        self
    }

    /// Returns this storage with listeners that do not receive its request events.
    pub(crate) fn heard_by(mut self, listeners: Observers) -> Self {
        Arc::make_mut(&mut self.observers).add_all(listeners);
        self
    }

    /// Returns the listeners and the tracer.
    pub(crate) fn observers(&self) -> &Arc<Observers> {
        &self.observers
    }

    /// Returns this storage behind wrappers of its halves, with the same load.
    fn wrapped(&self, stores: Stores) -> Self {
        Self {
            stores,
            throttle: Arc::clone(&self.throttle),
            apart: Arc::default(),
            observers: Arc::clone(&self.observers),
        }
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

    /// Returns whether the blobs of two storages are, by their names, not the same. The names of PostgreSQL servers are not compared: a server
    /// may have several.
    pub(crate) fn has_other_blobs(&self, other: &Self) -> bool {
        let [one, another] = [self, other].map(Self::blob_powers);
        one.identity != another.identity
            && match (&one.transaction_place, &another.transaction_place) {
                (Some(TransactionPlace::File(one)), Some(TransactionPlace::File(other))) => one != other,
                (
                    Some(TransactionPlace::Schema { name, storage, .. }),
                    Some(TransactionPlace::Schema { name: other_name, storage: other, .. }),
                ) => name != other_name || database(storage) != database(other),
                (None, None) => one.address != another.address,
                _ => true,
            }
    }

    /// Returns the leases of the blobs.
    ///
    /// # Errors
    /// `Unsupported` if the storage has none.
    pub fn leases(&self) -> Result<&Arc<dyn BlobLeases>, StoreError> {
        self.stores.leases()
    }

    jobqueue_storage::setters! {
        /// Returns the same storage with another runtime for what is built on it: queues, workers, leaders, batches. The
        /// adapter keeps the runtime with which it was opened.
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

    /// Returns the name of this storage without secrets: `memory`, `sqlite:PATH`, `postgres:HOST:PORT/DATABASE/SCHEMA`, `azure:ACCOUNT`.
    pub fn description(&self) -> &str {
        &self.stores.description
    }

    /// Returns the same storage over connections of its own, for use on another runtime.
    #[must_use]
    pub fn detached(&self) -> Self {
        self.wrapped(self.stores.detached())
    }

    /// Returns the load of the storage, for callers that can wait.
    pub(crate) fn throttle(&self) -> &Throttle {
        &self.throttle
    }

    /// Returns this storage over separate connections, for the runtime of the lease renewer; the same for all clones.
    pub(crate) fn apart(&self) -> &Stores {
        self.apart.get_or_init(|| self.stores.detached())
    }

    /// Returns the queues over separate connections.
    pub(crate) fn queues_apart(&self) -> Arc<Queues> {
        Arc::clone(&self.apart().queues)
    }

    /// Returns the blobs over separate connections.
    pub(crate) fn blobs_apart(&self) -> Arc<dyn BlobStore> {
        Arc::clone(&self.apart().blobs)
    }
}

/// Measures the load of the storage, and takes its panics as lost answers, from now on.
impl From<Stores> for Storage {
    fn from(stores: Stores) -> Self {
        let (stores, throttle) = stores.measured();
        Self { stores, throttle, apart: Arc::default(), observers: Arc::default() }
    }
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

/// Returns the database of a storage that is called `postgres:HOST:PORT/DATABASE/SCHEMA`.
fn database(storage: &str) -> Option<&str> {
    storage.rsplit('/').nth(1)
}

/// Returns the error of a storage that was not opened. Wrong options are an error of the configuration.
fn not_opened(cause: StoreError) -> Error {
    if cause.kind() == StoreErrorKind::Configuration {
        return cause.into();
    }
    let retryable = cause.is_retryable();
    Error::new(ErrorKind::Storage, "the storage cannot be opened")
        .with_retryable(retryable)
        .with_source(cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    // audit 23, coordination C1
    #[test]
    fn another_database_or_schema_is_another_storage_and_another_server_may_be_the_same() {
        let storage = |server: &str, database: &str, schema: &str| {
            let mut storage = Storage::memory();
            let place = TransactionPlace::schema(schema, format!("postgres:{server}/{database}/{schema}"));
            Arc::make_mut(&mut storage.stores.blob_powers).transaction_place = Some(place);
            storage
        };
        let own = storage("db:5432", "shop", "jobqueue");
        assert!(own.has_other_blobs(&storage("db:5432", "shop", "other")));
        assert!(own.has_other_blobs(&storage("db:5432", "billing", "jobqueue")));
        assert!(!own.has_other_blobs(&storage("db:5432", "shop", "jobqueue")));
        assert!(!own.has_other_blobs(&storage("10.0.0.7:5432", "shop", "jobqueue")));
    }
}
