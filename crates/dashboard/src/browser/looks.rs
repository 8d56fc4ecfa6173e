//! The looks at the storage that all viewers of a dashboard share.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue_admin::{QueueOverview, WorkerOverview};
use jobqueue_storage::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::browser::throughput::Throughput;
use crate::snapshot::{QueueFigures, Snapshot, Snapshots};

/// The most open pages that are refreshed. Each renders its page again after every look.
const MAX_VIEWERS: usize = 200;
/// The age from which figures are not those of a storage that is merely slow.
const STALE_AFTER: Duration = Duration::from_secs(60);
/// The longest wait for a snapshot. After 8 seconds the snapshot leaves out the queues and records that have not answered.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(9);

/// The result of a look at the storage.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) figures: Arc<Snapshot>,
    /// The reason why these are older figures.
    pub(crate) error: Option<String>,
}

/// The reason why nothing is known: the storage has not answered since the dashboard started.
#[derive(Debug)]
pub(crate) struct Unread(pub(crate) String);

impl Look {
    pub(crate) fn at(&self) -> SystemTime {
        self.figures.as_of.into()
    }

    pub(crate) fn queues(&self) -> &[QueueOverview] {
        &self.figures.overviews
    }

    pub(crate) fn queue(&self, name: &str) -> Option<&QueueOverview> {
        self.queues().iter().find(|queue| queue.name == name)
    }

    /// Returns the figures of a queue, which may be newer than the look; `None` if it could not be read.
    pub(crate) fn figures_of(&self, queue: &QueueOverview) -> Option<QueueFigures> {
        let known = self.figures.queues.get(&queue.name).cloned();
        known.or_else(|| QueueFigures::of(queue, self.known_workers()))
    }

    /// Returns the workers whose records were read: none if these cannot be read.
    pub(crate) fn workers(&self) -> &[WorkerOverview] {
        self.known_workers().unwrap_or_default()
    }

    /// Returns the workers; `None` if their records cannot be read.
    pub(crate) fn known_workers(&self) -> Option<&[WorkerOverview]> {
        self.figures.workers.as_deref().ok()
    }

    /// Returns whether jobs of the queue wait and no worker is seen, as far as the records of workers can be read.
    pub(crate) fn is_unserved(&self, queue: &QueueOverview) -> bool {
        self.known_workers().is_some_and(|workers| queue.is_unserved(workers))
    }

    pub(crate) fn present(&self) -> impl Iterator<Item = &WorkerOverview> {
        self.workers().iter().filter(|worker| !worker.stale)
    }

    /// Returns the requests of such a look besides the listing of the records: the queues are listed, and all are read.
    pub(crate) fn requests(&self) -> u64 {
        1 + 3 * self.queues().len() as u64 + self.workers().len() as u64
    }
}

/// Reads the storage for the pages: each look takes the snapshot that others have taken within an interval.
#[derive(Debug)]
pub(crate) struct Looks {
    snapshots: Snapshots,
    pub(crate) interval: Duration,
    places: Arc<Semaphore>,
    throughput: Mutex<Throughput>,
}

impl Looks {
    pub(crate) fn new(snapshots: Snapshots, interval: Duration) -> Self {
        let places = Arc::new(Semaphore::new(MAX_VIEWERS));
        Self { snapshots, interval, places, throughput: Mutex::default() }
    }

    /// Returns a snapshot of the storage that is younger than an interval, or an older one while the storage does not answer, or not within 9 seconds. If it has
    /// never answered, nothing is known and no page is shown.
    pub(crate) async fn latest(&self) -> Result<Look, Unread> {
        if let Ok(look) = timeout(SNAPSHOT_TIMEOUT, self.refreshed()).await {
            return look;
        }
        let silent = format!("no answer within {SNAPSHOT_TIMEOUT:?}");
        match self.snapshots.last() {
            Some(figures) => Ok(Look { figures, error: Some(silent) }),
            None => Err(Unread(silent)),
        }
    }

    async fn refreshed(&self) -> Result<Look, Unread> {
        match self.snapshots.within(self.interval).await {
            Ok(figures) => {
                lock(&self.throughput).look(&figures);
                Ok(Look { figures, error: None })
            }
            Err(unavailable) => match self.snapshots.last() {
                Some(figures) => Ok(Look { figures, error: Some(unavailable.reason) }),
                None => Err(Unread(unavailable.reason)),
            },
        }
    }

    /// Returns [`latest`](Self::latest) if it comes within `patience`, and otherwise the last snapshot. If that is older than a minute, or the reading since has failed,
    /// the storage counts as one that does not answer.
    pub(crate) async fn latest_within(&self, patience: Duration) -> Result<Look, Unread> {
        if let Ok(look) = timeout(patience, self.refreshed()).await {
            return look;
        }
        let error = self.snapshots.stats().last_error;
        let silent = || format!("no answer within {patience:?}");
        match self.snapshots.last() {
            Some(figures) if figures.taken.elapsed() <= STALE_AFTER => Ok(Look { figures, error }),
            Some(figures) => Ok(Look { figures, error: Some(silent()) }),
            None => Err(Unread(error.unwrap_or_else(silent))),
        }
    }

    /// Counts an open page; `None` if there are too many.
    pub(crate) fn watch(self: &Arc<Self>) -> Option<Viewer> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(Viewer { looks: Arc::clone(self), _place: place })
    }

    pub(crate) fn throughput<T>(&self, read: impl FnOnce(&Throughput) -> T) -> T {
        read(&lock(&self.throughput))
    }
}

/// An open page.
#[derive(Debug)]
pub(crate) struct Viewer {
    looks: Arc<Looks>,
    _place: OwnedSemaphorePermit,
}

impl Viewer {
    /// Waits for an interval, and looks.
    pub(crate) async fn look(&self) {
        sleep(self.looks.interval).await;
        // A look that fails is shown on the page.
        let _ = self.looks.latest().await;
    }
}
