//! The figures of all queues and workers, read from the storage at a bounded rate and shared by all requests.
//!
//! Pages, metrics and autoscalers share [`Snapshots`]: at most one refresh runs at a time, however many
//! callers wait. A snapshot that is too old is refused with a reason, because an unknown number is not 0.
//!
//! ```text
//! within(age)  ──► the last snapshot if it is young enough, else one shared refresh       (pages, metrics)
//! latest()     ──► the last snapshot at once; a task refreshes it while there are requests (autoscalers)
//! ```
//!
//! # Cost
//! A refresh lists the queues (1 request) and the records of workers (1), and sends 3 requests for each queue
//! and 1 for each worker that was present within the last hour. Azure bills each request, and the listing of
//! records as a write.

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

/// The maximum wait of a caller of [`Snapshots::latest`] if no snapshot is young enough.
const FIRST_WAIT: Duration = Duration::from_secs(1);

/// The pause after a failed refresh before [`Snapshots::within`] starts another one.
const RETRY_DELAY: Duration = Duration::from_secs(5);

/// [`Snapshots::latest`] refuses a snapshot that is older than this and than six intervals.
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

/// The reason why there are no figures, as text for people.
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
    /// Fires when the running refresh has ended.
    refreshing: Option<CancellationToken>,
    stats: RefreshStats,
    /// The end of the last failed refresh, and the value of `changes` at its start.
    failed: Option<(Instant, u64)>,
    /// The time of the last call of [`Snapshots::latest`].
    last_request: Option<Instant>,
    is_polling: bool,
    /// The number of changes that operators have made through this process.
    changes: u64,
}

/// Statistics about the refreshes of this process.
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
    /// Returns snapshots of the storage of `admin`, which refresh [`latest`](Self::latest) every 10 seconds.
    /// Reads nothing yet.
    pub fn new(admin: Admin) -> Self {
        Self::with(admin, Duration::from_secs(10))
    }

    fn with(admin: Admin, every: Duration) -> Self {
        Self(Arc::new(SnapshotSource { admin, every, state: Mutex::default() }))
    }

    /// Returns new snapshots of the same storage, which share no snapshot with these, and refresh
    /// [`latest`](Self::latest) at this interval while there are requests. The default is 10 seconds, the
    /// minimum 100 milliseconds. Each refresh costs [requests](self#cost).
    #[must_use]
    pub fn every(&self, interval: Duration) -> Self {
        Self::with(self.0.admin.clone(), interval.max(Duration::from_millis(100)))
    }

    /// Returns the operator's view through which the snapshots are read.
    pub fn admin(&self) -> &Admin {
        &self.0.admin
    }

    /// Returns the statistics of the refreshes so far.
    pub fn stats(&self) -> RefreshStats {
        self.state().stats.clone()
    }

    /// Returns a snapshot that is at most `age` old, and takes one if necessary. All callers that wait share
    /// one refresh. After a failed refresh, the next one begins after a pause of 5 seconds, or of `age` if
    /// that is shorter.
    ///
    /// # Errors
    /// The queues could not be read within 20 seconds; the text has the reason. If only the records of
    /// workers could not be read, the call succeeds with the figures of queues.
    ///
    /// # Cancel safety
    /// If the future is dropped, the refresh continues for other callers.
    pub async fn within(&self, age: Duration) -> Result<Arc<Snapshot>, Unavailable> {
        let (asked, changes) = (Instant::now(), self.state().changes);
        // The age counts from the start of this call, so that a slow storage does not cause repeated
        // requests.
        let is_new = |snapshot: &Arc<Snapshot>| {
            asked.saturating_duration_since(snapshot.taken) <= age && snapshot.changes >= changes
        };
        // A refresh that is already running may have begun before the last change; the next one has not.
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

    /// Returns the last snapshot at once, and keeps refreshing it at the [interval](Self::every) for the next
    /// 5 minutes. A call waits only if no snapshot is young enough, and for at most a second.
    ///
    /// # Errors
    /// There is no snapshot yet, or the last one is older than a minute and than six intervals, because the
    /// storage could not be read. An autoscaler that gets an error keeps its number of workers, which is
    /// better than scaling by an old number.
    ///
    /// # Cancel safety
    /// If the future is dropped, the refresh continues.
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

    /// Returns [`latest`](Self::latest). While the records of workers cannot be read, returns the last
    /// snapshot with records instead, if it is young enough.
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

    /// Makes the next call of [`within`](Self::within) read the storage, after a change by an operator.
    #[cfg(feature = "pages")]
    pub(crate) fn expire(&self) {
        self.state().changes += 1;
    }

    fn unavailable(&self, problem: &str) -> Unavailable {
        let reason = match &self.state().stats.last_error {
            Some(error) => format!("{problem}: {error}"),
            None => problem.to_owned(),
        };
        Unavailable { reason }
    }

    fn state(&self) -> MutexGuard<'_, RefreshState> {
        lock(&self.0.state)
    }
}
