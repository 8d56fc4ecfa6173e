//! One look at the storage for all who look at the dashboard.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use jobqueue::admin::{Admin, QueueOverview, WorkerOverview};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::browser::throughput::{Minute, Throughput};
use crate::sync::lock;

/// The time between two looks while nobody looks at the dashboard.
const IDLE: Duration = Duration::from_secs(60);

/// The time after the last viewer for which it still looks.
const LINGER: Duration = Duration::from_secs(3600);

/// The result of reading the storage once.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    pub(crate) at: SystemTime,
    taken: Instant,
    pub(crate) queues: Vec<QueueOverview>,
    pub(crate) workers: Vec<WorkerOverview>,
    /// The reason why it shows an earlier result.
    pub(crate) error: Option<String>,
}

impl Snapshot {
    pub(crate) fn queue(&self, name: &str) -> Option<&QueueOverview> {
        self.queues.iter().find(|queue| queue.name == name)
    }

    /// Returns the number of running jobs of a queue.
    pub(crate) fn running(&self, queue: &str) -> u64 {
        let records = self.present().map(|worker| &worker.record);
        records.flat_map(|record| &record.running).filter(|job| job.queue == queue).count() as u64
    }

    /// Returns the workers whose records are not stale.
    pub(crate) fn present(&self) -> impl Iterator<Item = &WorkerOverview> {
        self.workers.iter().filter(|worker| !worker.stale)
    }

    /// Returns the number of requests of such a look.
    pub(crate) fn requests(&self) -> u64 {
        2 + 3 * self.queues.len() as u64 + self.workers.len() as u64
    }
}

/// Looks at the storage as often as somebody looks at the dashboard.
#[derive(Debug)]
pub(crate) struct Poller {
    admin: Admin,
    pub(crate) interval: Duration,
    stop: CancellationToken,
    latest: watch::Sender<Option<Arc<Snapshot>>>,
    /// Held while one looks: others wait for what it finds.
    looking: tokio::sync::Mutex<()>,
    outdated: AtomicBool,
    viewers: AtomicUsize,
    wake: Notify,
    runs: AtomicBool,
    throughput: Mutex<Throughput>,
}

impl Poller {
    pub(crate) fn new(admin: Admin, interval: Duration, stop: CancellationToken) -> Arc<Self> {
        Arc::new(Self {
            admin,
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

    /// Returns what the storage looks like, as of now or of less than an interval ago.
    pub(crate) async fn latest(self: &Arc<Self>) -> Arc<Snapshot> {
        self.keep_running();
        match self.fresh() {
            Some(snapshot) => snapshot,
            None => self.look().await,
        }
    }

    /// Makes the next request look at the storage: something was changed.
    pub(crate) fn expire(&self) {
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

    fn fresh(&self) -> Option<Arc<Snapshot>> {
        let snapshot = self.latest.borrow().clone()?;
        let is_fresh = snapshot.taken.elapsed() < self.interval && !self.outdated.load(Ordering::Acquire);
        is_fresh.then_some(snapshot)
    }

    async fn look(&self) -> Arc<Snapshot> {
        let _looking = self.looking.lock().await;
        if let Some(snapshot) = self.fresh() {
            return snapshot;
        }
        // Before the request: a change after this is not in it for certain.
        self.outdated.store(false, Ordering::Release);
        let taken = Instant::now();
        let (queues, workers) = futures_util::join!(self.admin.queues(), self.admin.all_workers());
        let at = SystemTime::now();
        let snapshot = Arc::new(match (queues, workers) {
            (Ok(queues), Ok(workers)) => {
                let mut throughput = lock(&self.throughput);
                throughput.look(at, workers.iter().map(|worker| &worker.record));
                Snapshot { at, taken, queues, workers, error: None }
            }
            (Err(error), _) | (_, Err(error)) => {
                let last = self.latest.borrow().clone();
                let error = Some(format!("{error:?}"));
                match last {
                    Some(last) => Snapshot { taken, error, ..Snapshot::clone(&last) },
                    None => Snapshot { at, taken, queues: Vec::new(), workers: Vec::new(), error },
                }
            }
        });
        self.latest.send_replace(Some(Arc::clone(&snapshot)));
        snapshot
    }

    /// Starts the task that looks, unless it runs.
    fn keep_running(self: &Arc<Self>) {
        if !self.stop.is_cancelled() && !self.runs.swap(true, Ordering::AcqRel) {
            tokio::spawn(run(Arc::downgrade(self), self.stop.clone()));
        }
    }
}

/// Looks until the dashboard is dropped or stopped, or nobody has looked at it for an hour.
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
    looks: watch::Receiver<Option<Arc<Snapshot>>>,
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
