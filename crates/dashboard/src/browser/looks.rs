//! Looks at the storage, which all viewers of a dashboard share. A look is a snapshot, with an error if the
//! snapshot is outdated.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue_admin::{JournalCounts, QueueOverview, QueuePace, WorkerOverview};
use jobqueue_storage::sync::lock;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{sleep, timeout};

use crate::browser::paces::Paces;
use crate::browser::throughput::Throughput;
use crate::snapshot::{QueueFigures, Snapshot, Snapshots};

/// The maximum number of open pages that are refreshed. Each page is rendered again after every look.
const MAX_VIEWERS: usize = 200;
/// Figures older than this are shown as unknown, because a storage that is merely slow would have answered by
/// then.
const STALE_AFTER: Duration = Duration::from_secs(60);
/// The maximum wait for a snapshot. After 8 seconds, a snapshot leaves out queues and records that have not
/// arrived.
const SNAPSHOT_TIMEOUT: Duration = Duration::from_secs(9);

/// The result of a look at the storage.
#[derive(Debug)]
pub(crate) struct Look {
    pub(crate) figures: Arc<Snapshot>,
    /// The reason why the figures are outdated.
    pub(crate) error: Option<String>,
}

/// The reason why there are no figures: the storage has not answered since the dashboard started.
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

    /// Returns the workers, or none if their records cannot be read.
    pub(crate) fn workers(&self) -> &[WorkerOverview] {
        self.known_workers().unwrap_or_default()
    }

    /// Returns the workers; `None` if their records cannot be read.
    pub(crate) fn known_workers(&self) -> Option<&[WorkerOverview]> {
        self.figures.workers.as_deref().ok()
    }

    /// Returns whether jobs of the queue wait although no worker serves it. Returns false if the records of
    /// workers cannot be read.
    pub(crate) fn is_unserved(&self, queue: &QueueOverview) -> bool {
        self.known_workers().is_some_and(|workers| queue.is_unserved(workers))
    }

    /// Returns a sentence about the workers if none writes its record any more.
    pub(crate) fn silence(&self) -> Option<String> {
        jobqueue_admin::silence(self.workers())
    }

    pub(crate) fn present(&self) -> impl Iterator<Item = &WorkerOverview> {
        self.workers().iter().filter(|worker| !worker.stale)
    }

    /// Returns the number of requests of a look, without the listing of the workers' records.
    pub(crate) fn requests(&self) -> u64 {
        1 + 3 * self.queues().len() as u64 + self.workers().len() as u64
    }
}

/// Reads the storage for the pages. All looks within an interval share one snapshot.
#[derive(Debug)]
pub(crate) struct Looks {
    snapshots: Snapshots,
    pub(crate) interval: Duration,
    places: Arc<Semaphore>,
    throughput: Mutex<Throughput>,
    paces: Mutex<Paces>,
}

impl Looks {
    pub(crate) fn new(snapshots: Snapshots, interval: Duration) -> Self {
        let places = Arc::new(Semaphore::new(MAX_VIEWERS));
        Self { snapshots, interval, places, throughput: Mutex::default(), paces: Mutex::default() }
    }

    /// Returns a look that is younger than an interval. If the storage does not answer within 9 seconds,
    /// returns an older look, or an error if the storage has never answered: then no page is shown.
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
                lock(&self.paces).look(&figures);
                Ok(Look { figures, error: None })
            }
            Err(unavailable) => match self.snapshots.last() {
                Some(figures) => Ok(Look { figures, error: Some(unavailable.reason) }),
                None => Err(Unread(unavailable.reason)),
            },
        }
    }

    /// Returns [`latest`](Self::latest) if it arrives within `limit`, and otherwise the last snapshot. The
    /// look has an error if that snapshot is older than a minute, or if the last refresh has failed.
    pub(crate) async fn latest_within(&self, limit: Duration) -> Result<Look, Unread> {
        if let Ok(look) = timeout(limit, self.refreshed()).await {
            return look;
        }
        let error = self.snapshots.stats().last_error;
        let silent = || format!("no answer within {limit:?}");
        match self.snapshots.last() {
            Some(figures) if figures.taken.elapsed() <= STALE_AFTER => Ok(Look { figures, error }),
            Some(figures) => Ok(Look { figures, error: Some(silent()) }),
            None => Err(Unread(error.unwrap_or_else(silent))),
        }
    }

    /// Registers an open page; `None` if there are too many.
    pub(crate) fn watch(self: &Arc<Self>) -> Option<Viewer> {
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(Viewer { looks: Arc::clone(self), _place: place })
    }

    /// Returns the pace of a queue, from the looks of the last two minutes.
    pub(crate) fn pace(&self, queue: &str) -> QueuePace {
        lock(&self.paces).of_queue(queue)
    }

    /// Adds the jobs of the last hour before `until`, by this process's clock, that the journal has; `None` if
    /// it cannot be read.
    pub(crate) fn add_journal(&self, counts: Option<&JournalCounts>, until: SystemTime) {
        let mut throughput = lock(&self.throughput);
        match counts {
            Some(counts) => throughput.add_journal(counts, until),
            None => throughput.fail_journal(),
        }
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
    /// Waits for an interval, and then takes a look.
    pub(crate) async fn look(&self) {
        sleep(self.looks.interval).await;
        // The page shows a look that failed.
        let _ = self.looks.latest().await;
    }
}
