//! The figures of all queues and workers, read from the storage for all requests, at a bounded rate.
//!
//! Pages, metrics and autoscalers share [`Snapshots`]: one refresh runs at a time, however many ask. A snapshot that is too old is refused
//! with a reason: an unknown number is not 0.
//!
//! ```text
//! within(age)  ──► young enough? the last snapshot : one refresh, which all wait for            (pages, metrics)
//! latest()     ──► the last snapshot at once; a task refreshes it while there are requests         (autoscalers)
//! ```
//!
//! # Cost
//! A refresh lists the queues (1 request) and the records of workers (1), and sends 3 requests for each queue and 1 for each worker
//! that is or was present within the hour. On Azure each request is billed, and the listing of records as a write.

mod figures;
mod lost;
mod refresh;
mod totals;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use jobqueue_admin::Admin;
use jobqueue_storage::sync::lock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

pub(crate) use figures::round;
pub use figures::{Demand, QueueFigures, WorkerFigures};
pub use refresh::Snapshot;
pub use totals::{KindTotals, Totals};

/// The time that a caller of [`Snapshots::latest`] waits for a snapshot.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The time for which [`Snapshots::within`] does not repeat a refresh that failed.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// The age from which [`Snapshots::latest`] refuses a snapshot, unless six intervals are longer.
const MAX_AGE: Duration = Duration::from_secs(60);

/// Snapshots of a storage. Cheap to clone; clones share the last snapshot.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::Storage;
/// use jobqueue_admin::{AccessLevel, Admin};
/// use jobqueue_dashboard::snapshot::Snapshots;
/// use std::time::Duration;
///
/// let admin = Admin::builder(Storage::memory()).access(AccessLevel::Operate).build();
/// admin.create_queue("mails").await?;
/// let snapshots = Snapshots::new(admin).every(Duration::from_secs(30));
/// let snapshot = snapshots.within(Duration::from_secs(5)).await?;
/// assert_eq!(snapshot.queues["mails"].length, 0);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Snapshots(Arc<SnapshotSource>);

/// The reason why there are no figures, for people.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct Unavailable {
    /// The reason.
    pub reason: String,
}

#[derive(Debug)]
struct SnapshotSource {
    admin: Admin,
    every: Duration,
    state: Mutex<RefreshState>,
}

#[derive(Debug, Default)]
struct RefreshState {
    last: Option<Arc<Snapshot>>,
    /// The last snapshot with the records of workers.
    last_with_workers: Option<Arc<Snapshot>>,
    collected: refresh::Collected,
    /// Fires when the refresh under way has ended.
    refreshing: Option<CancellationToken>,
    stats: RefreshStats,
    /// The end of the last refresh that failed, and the changes made before its begin.
    failed: Option<(Instant, u64)>,
    /// The time of the last call of `latest`.
    last_request: Option<Instant>,
    is_polling: bool,
    /// The changes that the operators of this process have made.
    changes: u64,
}

/// Numbers about the refreshes of this process.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct RefreshStats {
    /// Refreshes that succeeded.
    pub succeeded: u64,
    /// Refreshes that failed.
    pub failed: u64,
    /// The duration of the last refresh.
    pub last_duration: Duration,
    /// The error of the last refresh, if it failed.
    pub last_error: Option<String>,
}

impl From<Admin> for Snapshots {
    fn from(admin: Admin) -> Self {
        Self::new(admin)
    }
}

impl Snapshots {
    /// Returns snapshots of the storage of `admin`. [`latest`](Self::latest) is refreshed every 10 seconds. Nothing is read yet.
    pub fn new(admin: Admin) -> Self {
        Self::with(admin, Duration::from_secs(10))
    }

    fn with(admin: Admin, every: Duration) -> Self {
        Self(Arc::new(SnapshotSource { admin, every, state: Mutex::default() }))
    }

    /// Returns new snapshots, which share nothing with these, with this refresh interval of [`latest`](Self::latest), which refreshes while
    /// there are requests. The default is 10 seconds, the minimum 100 milliseconds. Each refresh costs [requests](self#cost).
    #[must_use]
    pub fn every(&self, interval: Duration) -> Self {
        Self::with(self.0.admin.clone(), interval.max(Duration::from_millis(100)))
    }

    /// Returns the operator's view from which the snapshots are taken.
    pub fn admin(&self) -> &Admin {
        &self.0.admin
    }

    /// Returns the numbers of the refreshes so far.
    pub fn stats(&self) -> RefreshStats {
        self.state().stats.clone()
    }

    /// Returns a snapshot of at most this age; takes one if there is none. All who wait share one refresh. After one that failed, the next
    /// begins 5 seconds after its end at the earliest, or sooner for a lower age.
    ///
    /// # Errors
    /// The queues could not be read, or not within 20 seconds; the reason is in the text. Without the records of workers there are the figures
    /// of queues.
    ///
    /// # Cancel safety
    /// If the future is dropped, the refresh goes on for others.
    pub async fn within(&self, age: Duration) -> Result<Arc<Snapshot>, Unavailable> {
        let (asked, changes) = (Instant::now(), self.state().changes);
        // The age counts from the question: a slow storage does not cause repeated requests.
        let is_new = |snapshot: &Arc<Snapshot>| {
            asked.saturating_duration_since(snapshot.taken) <= age && snapshot.changes >= changes
        };
        // The refresh under way may have begun before the last change; the one after it has not.
        for _ in 0..2 {
            if let Some(snapshot) = self.last().filter(is_new) {
                return Ok(snapshot);
            }
            let failed = self.state().failed;
            if failed.is_some_and(|(at, before)| at + age.min(RETRY_DELAY) > asked && before >= changes) {
                break;
            }
            self.refresh().await;
        }
        self.last().filter(is_new).ok_or_else(|| self.unavailable("the storage cannot be read"))
    }

    /// Returns the last snapshot at once, and sees to it that it is refreshed at the [interval](Self::every) for the next 5 minutes. A call
    /// waits for at most a second, and only while there is no snapshot that is young enough.
    ///
    /// # Errors
    /// There is no snapshot yet, or it is older than a minute and than six intervals, since the storage could not be read. An autoscaler
    /// that is refused keeps its number of workers, which is better than an old number.
    ///
    /// # Cancel safety
    /// If the future is dropped, the refresh goes on.
    pub async fn latest(&self) -> Result<Arc<Snapshot>, Unavailable> {
        self.keep_polling();
        let max_age = self.max_age();
        if self.last().is_none_or(|last| last.taken.elapsed() > max_age) {
            let _ = tokio::time::timeout(FIRST_WAIT, self.within(max_age)).await;
        }
        let Some(snapshot) = self.last() else {
            return Err(self.unavailable("no figures yet"));
        };
        let age = snapshot.taken.elapsed();
        if age > max_age {
            return Err(self.unavailable(&format!("the figures are {} s old", age.as_secs())));
        }
        Ok(snapshot)
    }

    fn max_age(&self) -> Duration {
        MAX_AGE.max(self.0.every.saturating_mul(6))
    }

    /// Returns [`latest`](Self::latest). While the records of workers cannot be read, returns the last snapshot that has them, if it is young
    /// enough.
    pub(crate) async fn latest_with_workers(&self) -> Result<Arc<Snapshot>, Unavailable> {
        let latest = self.latest().await?;
        if latest.workers.is_ok() {
            return Ok(latest);
        }
        let last =
            self.state().last_with_workers.clone().filter(|last| last.taken.elapsed() <= self.max_age());
        Ok(last.unwrap_or(latest))
    }

    /// Returns the last snapshot, however old.
    pub(crate) fn last(&self) -> Option<Arc<Snapshot>> {
        self.state().last.clone()
    }

    /// Makes the next call of [`within`](Self::within) read the storage: an operator has changed something.
    #[cfg(feature = "pages")]
    pub(crate) fn expire(&self) {
        self.state().changes += 1;
    }

    fn unavailable(&self, what: &str) -> Unavailable {
        let reason = match &self.state().stats.last_error {
            Some(error) => format!("{what}: {error}"),
            None => what.to_owned(),
        };
        Unavailable { reason }
    }

    fn state(&self) -> MutexGuard<'_, RefreshState> {
        lock(&self.0.state)
    }
}
