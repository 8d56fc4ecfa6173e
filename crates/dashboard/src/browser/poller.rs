//! One look at the storage for all who look at the dashboard.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, SystemTime};

use jobqueue_admin::{QueueOverview, WorkerOverview};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::browser::throughput::{Minute, Throughput};
use crate::snapshot::{Snapshot, Snapshots};
use crate::sync::lock;

/// The interval of refreshes without viewers.
const IDLE: Duration = Duration::from_secs(60);

/// The time after the last viewer for which it still looks.
const LINGER: Duration = Duration::from_secs(3600);

/// The result of a look at the storage.
#[derive(Debug)]
pub(crate) struct Look {
    /// The last figures.
    figures: Arc<Snapshot>,
    /// The reason why it shows an older snapshot.
    pub(crate) error: Option<String>,
}

/// The reason why nothing is known: the storage has not answered since the dashboard started.
#[derive(Debug)]
pub(crate) struct Unread(pub(crate) String);

/// A look that was tried.
#[derive(Debug)]
struct Attempt {
    taken: Instant,
    /// The look, or the reason why the storage has never been read.
    look: Result<Arc<Look>, String>,
}

impl Look {
    /// Returns when the storage was read.
    pub(crate) fn at(&self) -> SystemTime {
        self.figures.as_of.into()
    }

    pub(crate) fn queues(&self) -> &[QueueOverview] {
        &self.figures.overviews
    }

    pub(crate) fn queue(&self, name: &str) -> Option<&QueueOverview> {
        self.queues().iter().find(|queue| queue.name == name)
    }

    /// Returns all workers, those with stale records too.
    pub(crate) fn workers(&self) -> &[WorkerOverview] {
        &self.figures.workers
    }

    /// Returns the number of running jobs of a queue: by the leases, if the storage counts them, or else by the records of the workers.
    pub(crate) fn running(&self, queue: &QueueOverview) -> u64 {
        if let Some(states) = queue.states {
            return states.running;
        }
        let queue = queue.name.as_str();
        let records = self.present().map(|worker| &worker.record);
        records.flat_map(|record| &record.running).filter(|job| job.queue == queue).count() as u64
    }

    /// Returns the number of jobs of a queue that do not run, if it is known.
    pub(crate) fn waiting(&self, queue: &QueueOverview) -> Option<u64> {
        Some(queue.length?.saturating_sub(self.running(queue)))
    }

    /// Returns the workers whose records are not stale.
    pub(crate) fn present(&self) -> impl Iterator<Item = &WorkerOverview> {
        self.workers().iter().filter(|worker| !worker.stale)
    }

    /// Returns the number of requests of such a look.
    pub(crate) fn requests(&self) -> u64 {
        2 + 3 * self.queues().len() as u64 + self.workers().len() as u64
    }
}

/// Refreshes the snapshot of the storage while the dashboard has viewers.
#[derive(Debug)]
pub(crate) struct Poller {
    snapshots: Snapshots,
    pub(crate) interval: Duration,
    stop: CancellationToken,
    latest: watch::Sender<Option<Arc<Attempt>>>,
    /// Held during a refresh; concurrent callers wait for its result.
    looking: tokio::sync::Mutex<()>,
    outdated: AtomicBool,
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
            latest: watch::Sender::new(None),
            looking: tokio::sync::Mutex::default(),
            outdated: AtomicBool::new(false),
            viewers: AtomicUsize::new(0),
            wake: Notify::new(),
            runs: AtomicBool::new(false),
            throughput: Mutex::default(),
        })
    }

    /// Returns a snapshot of the storage that is younger than an interval, or an older one while the storage does not answer. If it has
    /// never answered, nothing is known and no page is shown.
    pub(crate) async fn latest(self: &Arc<Self>) -> Result<Arc<Look>, Unread> {
        self.keep_running();
        let attempt = match self.fresh() {
            Some(attempt) => attempt,
            None => self.look().await,
        };
        attempt.look.as_ref().map(Arc::clone).map_err(|reason| Unread(reason.clone()))
    }

    /// Makes the next request look at the storage: something was changed.
    pub(crate) fn expire(&self) {
        self.snapshots.expire();
        self.outdated.store(true, Ordering::Release);
    }

    /// Returns a stream of looks, during which it looks more often.
    pub(crate) fn watch(self: &Arc<Self>) -> Viewer {
        self.viewers.fetch_add(1, Ordering::AcqRel);
        self.keep_running();
        self.wake.notify_one();
        let mut looks = self.latest.subscribe();
        looks.mark_unchanged();
        Viewer { poller: Arc::clone(self), looks }
    }

    pub(crate) fn throughput<T>(&self, read: impl FnOnce(&Throughput) -> T) -> T {
        read(&lock(&self.throughput))
    }

    /// Returns the minutes of the last hour of all queues.
    pub(crate) fn hour(&self) -> Vec<Minute> {
        self.throughput(Throughput::of_all)
    }

    fn fresh(&self) -> Option<Arc<Attempt>> {
        let look = self.latest.borrow().clone()?;
        let is_fresh = look.taken.elapsed() < self.interval && !self.outdated.load(Ordering::Acquire);
        is_fresh.then_some(look)
    }

    async fn look(&self) -> Arc<Attempt> {
        let _looking = self.looking.lock().await;
        if let Some(look) = self.fresh() {
            return look;
        }
        // Before the request: a change after this is not in it for certain.
        self.outdated.store(false, Ordering::Release);
        let asked = Instant::now();
        // Metrics and autoscalers may have read a moment ago.
        let attempt = Arc::new(match self.snapshots.within(self.interval).await {
            Ok(figures) => {
                let mut throughput = lock(&self.throughput);
                throughput.look(figures.as_of.into(), figures.workers.iter().map(|worker| &worker.record));
                Attempt { taken: figures.taken, look: Ok(Arc::new(Look { figures, error: None })) }
            }
            Err(unavailable) => {
                let reason = unavailable.reason;
                let look = match self.snapshots.last() {
                    Some(figures) => Ok(Arc::new(Look { figures, error: Some(reason) })),
                    None => Err(reason),
                };
                Attempt { taken: asked, look }
            }
        });
        self.latest.send_replace(Some(Arc::clone(&attempt)));
        attempt
    }

    /// Starts the task that looks, unless it runs.
    fn keep_running(self: &Arc<Self>) {
        if !self.stop.is_cancelled() && !self.runs.swap(true, Ordering::AcqRel) {
            tokio::spawn(run(Arc::downgrade(self), self.stop.clone()));
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
            () = tokio::time::sleep(pause) => { poller.look().await; }
            // Somebody has come.
            () = poller.wake.notified() => {}
        }
    }
}

/// Somebody who looks at the dashboard.
#[derive(Debug)]
pub(crate) struct Viewer {
    poller: Arc<Poller>,
    looks: watch::Receiver<Option<Arc<Attempt>>>,
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
