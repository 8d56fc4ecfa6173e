//! One look at the storage for all who look at the dashboard.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use jobqueue_admin::{QueueOverview, WorkerOverview};
use jobqueue_storage::sync::lock;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::browser::throughput::Throughput;
use crate::snapshot::{QueueFigures, Snapshot, Snapshots};

/// The most open pages that are refreshed. Each renders its page again after every look.
const MAX_VIEWERS: usize = 200;
const IDLE: Duration = Duration::from_secs(60);
/// The time after the last viewer for which it still looks.
const LINGER: Duration = Duration::from_secs(3600);

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

/// The requests of a refresh.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Cost {
    pub(crate) requests: u64,
    /// The lists of blobs, which Azure bills as writes.
    pub(crate) listings: u64,
}

impl Cost {
    pub(crate) fn new(requests: u64, listings: u64) -> Self {
        Self { requests, listings }
    }
}

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

    /// Returns the figures of a queue; `None` if it could not be read.
    pub(crate) fn figures_of(&self, queue: &QueueOverview) -> Option<QueueFigures> {
        QueueFigures::of(queue, self.known_workers())
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

    /// Returns the requests of such a look: the queues and the records of workers are listed, and each is read.
    pub(crate) fn cost(&self) -> Cost {
        Cost::new(1 + 3 * self.queues().len() as u64 + self.workers().len() as u64, 1)
    }
}

/// Refreshes the snapshot of the storage while the dashboard has viewers.
#[derive(Debug)]
pub(crate) struct Poller {
    snapshots: Snapshots,
    pub(crate) interval: Duration,
    stop: CancellationToken,
    viewers: AtomicUsize,
    wake: Notify,
    runs: AtomicBool,
    throughput: Mutex<Throughput>,
}

impl Poller {
    pub(crate) fn new(snapshots: Snapshots, interval: Duration, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            snapshots,
            interval,
            stop,
            viewers: AtomicUsize::new(0),
            wake: Notify::new(),
            runs: AtomicBool::new(false),
            throughput: Mutex::default(),
        })
    }

    /// Returns a snapshot of the storage that is younger than an interval, or an older one while the storage does not answer. If it has
    /// never answered, nothing is known and no page is shown.
    pub(crate) async fn latest(self: &Arc<Self>) -> Result<Look, Unread> {
        self.keep_running();
        self.look().await
    }

    /// Returns [`latest`](Self::latest) if it comes within `patience`, and otherwise the last snapshot. If that is older than a minute, or the reading before has failed,
    /// the storage counts as one that does not answer.
    pub(crate) async fn latest_within(self: &Arc<Self>, patience: Duration) -> Result<Look, Unread> {
        if let Ok(look) = tokio::time::timeout(patience, self.latest()).await {
            return look;
        }
        let error = self.snapshots.stats().last_error;
        let silent = || format!("no answer within {patience:?}");
        match self.snapshots.last() {
            Some(figures) if figures.taken.elapsed() <= IDLE => Ok(Look { figures, error }),
            Some(figures) => Ok(Look { figures, error: Some(error.unwrap_or_else(silent)) }),
            None => Err(Unread(error.unwrap_or_else(silent))),
        }
    }

    /// Starts the task that looks, unless it runs.
    fn keep_running(self: &Arc<Self>) {
        if !self.stop.is_cancelled() && !self.runs.swap(true, Ordering::AcqRel) {
            tokio::spawn(run(Arc::downgrade(self), self.stop.clone()));
        }
    }

    /// Counts a viewer, during whose presence it looks more often; `None` if there are too many.
    pub(crate) fn watch(self: &Arc<Self>) -> Option<Viewer> {
        let room = |viewers: usize| (viewers < MAX_VIEWERS).then_some(viewers + 1);
        self.viewers.fetch_update(Ordering::AcqRel, Ordering::Acquire, room).ok()?;
        self.keep_running();
        self.wake.notify_one();
        let mut looks = self.snapshots.changes();
        looks.mark_unchanged();
        Some(Viewer { poller: Arc::clone(self), looks })
    }

    pub(crate) fn throughput<T>(&self, read: impl FnOnce(&Throughput) -> T) -> T {
        read(&lock(&self.throughput))
    }

    async fn look(&self) -> Result<Look, Unread> {
        // Metrics and autoscalers may have read a moment ago.
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
}

/// Refreshes until the dashboard is dropped or stopped, or has had no viewer for an hour.
async fn run(poller: Weak<Poller>, stop: CancellationToken) {
    let mut seen = Instant::now();
    while let Some(poller) = poller.upgrade() {
        let is_watched = poller.viewers.load(Ordering::Acquire) > 0;
        if is_watched {
            seen = Instant::now();
        }
        if seen.elapsed() > LINGER {
            poller.runs.store(false, Ordering::Release);
            return;
        }
        let pause = if is_watched { poller.interval } else { IDLE.max(poller.interval) };
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => drop(poller.look().await),
            // A viewer has come.
            () = poller.wake.notified() => {}
        }
    }
}

/// An open page.
#[derive(Debug)]
pub(crate) struct Viewer {
    poller: Arc<Poller>,
    looks: watch::Receiver<u64>,
}

impl Viewer {
    /// Waits for the next look at the storage; returns false if there will be none.
    pub(crate) async fn next(&mut self) -> bool {
        self.looks.changed().await.is_ok()
    }
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.poller.viewers.fetch_sub(1, Ordering::AcqRel);
    }
}
