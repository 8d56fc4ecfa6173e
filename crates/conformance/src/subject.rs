//! The storage under test, with the facts that the promises need.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::fixture::{TestBlob, TestQueue};
use super::{Broken, Deviation};
use jobqueue::QueueName;
use jobqueue::clock::ManualClock;
use jobqueue::settings::Metadata;
use jobqueue::storage::{BlobName, ContainerName, Storage};

type TimePassing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A storage under test, with a way to let its time pass.
///
/// All queues and containers of promises have unique names. So several subjects and promises may use the same
/// storage concurrently, provided that its time is real.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() {
/// use jobqueue::clock::ManualClock;
/// use jobqueue::{Runtime, Storage, memory};
/// use jobqueue_conformance::{Subject, exercise};
/// use std::sync::Arc;
///
/// # fn my_storage(clock: Arc<ManualClock>) -> Storage { memory::open_on(Runtime::new().with_clock(clock)) }
/// // An injected clock avoids waiting. For a storage with its own clock, use `real_time`.
/// let clock = Arc::new(ManualClock::new());
/// let subject = Subject::virtual_time(my_storage(clock.clone()), clock);
/// exercise(&subject).await.assert_kept();
/// # }
/// ```
pub struct Subject {
    storage: Storage,
    advance: Box<dyn Fn(Duration) -> TimePassing + Send + Sync>,
    tolerance: Duration,
    deviations: BTreeSet<Deviation>,
    run: String,
    names: AtomicU32,
    _guard: Option<Box<dyn Any + Send + Sync>>,
}

impl Subject {
    /// Returns a subject whose time passes when `advance` is awaited. The instants that the storage reports
    /// may be wrong by `tolerance`.
    pub fn new(
        storage: Storage,
        tolerance: Duration,
        advance: impl Fn(Duration) -> TimePassing + Send + Sync + 'static,
    ) -> Self {
        let run = uuid::Uuid::new_v4().simple().to_string();
        Self {
            storage,
            advance: Box::new(advance),
            tolerance,
            deviations: BTreeSet::new(),
            run: run[..12].to_owned(),
            names: AtomicU32::new(0),
            _guard: None,
        }
    }

    /// Returns a subject whose time is `clock`. Promises must not run concurrently on it.
    pub fn virtual_time(storage: Storage, clock: Arc<ManualClock>) -> Self {
        Self::new(storage, Duration::from_millis(1), move |by| {
            clock.advance(by);
            Box::pin(std::future::ready(()))
        })
    }

    /// Returns a subject in real time. It waits a little longer than requested, because some storages count
    /// whole seconds.
    pub fn real_time(storage: Storage) -> Self {
        Self::new(storage, Duration::from_secs(5), |by| {
            Box::pin(tokio::time::sleep(by + Duration::from_millis(300)))
        })
    }

    /// Declares the known deviations of the storage.
    #[must_use]
    pub fn deviating(mut self, deviations: impl IntoIterator<Item = Deviation>) -> Self {
        self.deviations.extend(deviations);
        self
    }

    /// Keeps a value, such as a temporary folder, for as long as the subject lives.
    #[must_use]
    pub fn keeping(mut self, guard: impl Any + Send + Sync) -> Self {
        self._guard = Some(Box::new(guard));
        self
    }

    /// Returns the storage under test.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Returns whether the storage is declared to have this deviation.
    pub fn deviates(&self, deviation: Deviation) -> bool {
        self.deviations.contains(&deviation)
    }

    /// Returns the failures of a promise that the declared deviations explain, each as the beginning of its
    /// text.
    pub(super) fn breaks(&self, promise: &str) -> Vec<&'static str> {
        let all = self.deviations.iter().flat_map(|deviation| deviation.breaks());
        all.filter(|(name, _)| *name == promise).map(|(_, place)| *place).collect()
    }

    /// Returns the maximum error of the instants that the storage reports.
    pub fn tolerance(&self) -> Duration {
        self.tolerance
    }

    /// Waits until at least `by` of the storage's time has passed.
    ///
    /// # Cancel safety
    /// If the future is dropped, the time may or may not have passed.
    pub async fn advance(&self, by: Duration) {
        (self.advance)(by).await;
    }

    /// Returns the common prefix of the names of all queues and containers of this subject.
    pub fn prefix(&self) -> String {
        format!("c{}-", self.run)
    }

    pub(super) fn queue_name(&self) -> Result<QueueName, Broken> {
        QueueName::new(self.name()).map_err(|error| Broken::new(error.to_string()))
    }

    pub(super) fn container_name(&self) -> Result<ContainerName, Broken> {
        ContainerName::new(self.name()).map_err(|error| Broken::new(error.to_string()))
    }

    pub(super) async fn queue(&self) -> Result<TestQueue, Broken> {
        let name = self.queue_name()?;
        self.storage.queues().create_queue(&name, &Metadata::new()).await?;
        Ok(TestQueue::new(&self.storage, name))
    }

    /// Returns a handle to a queue that does not exist.
    pub(super) async fn missing_queue(&self) -> Result<TestQueue, Broken> {
        Ok(TestQueue::new(&self.storage, self.queue_name()?))
    }

    /// Returns a handle to a blob that does not exist, in a new container.
    pub(super) async fn missing_blob(&self) -> Result<TestBlob, Broken> {
        let container = self.container_name()?;
        self.storage.blobs().create_container(&container).await?;
        let name = BlobName::new(container, "a/blob").map_err(|error| Broken::new(error.to_string()))?;
        Ok(TestBlob::new(&self.storage, name))
    }

    /// Creates a blob with the content `first`, in a new container.
    pub(super) async fn blob(&self) -> Result<TestBlob, Broken> {
        let blob = self.missing_blob().await?;
        blob.write("first").await?;
        Ok(blob)
    }

    fn name(&self) -> String {
        format!("{}{}", self.prefix(), self.names.fetch_add(1, Ordering::Relaxed))
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("storage", &self.storage)
            .field("deviations", &self.deviations)
            .finish_non_exhaustive()
    }
}
