//! The options and the report of a sweep.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

/// The default time that a blob is kept after its expiry: clocks differ, and a job that has just expired may
/// still run.
const DEFAULT_GRACE: Duration = Duration::from_secs(86_400);

pub(super) type ProgressListener = dyn Fn(&SweepReport) + Send + Sync;

/// The options of a [`sweep`](crate::maintenance::sweep).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::maintenance::{SweepOptions, sweep};
/// use jobqueue::Storage;
///
/// let storage = Storage::memory();
/// // Also old payloads of queues that are empty now. First count the blobs, then remove at most 10,000.
/// let options = SweepOptions::new().drained_queues(true).limit(10_000);
/// let found = sweep(&storage, options.clone().dry_run(true)).await?;
/// println!("{} blobs of {} bytes", found.removed, found.bytes);
/// let swept = sweep(&storage, options).await?;
/// # assert_eq!((found.removed, swept.removed), (0, 0));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SweepOptions {
    pub(super) grace: Duration,
    pub(super) drained_queues: bool,
    pub(super) dry_run: bool,
    pub(super) limit: Option<u64>,
    pub(super) stop: CancellationToken,
    pub(super) progress: Option<Arc<ProgressListener>>,
}

impl Default for SweepOptions {
    fn default() -> Self {
        let stop = CancellationToken::new();
        Self {
            grace: DEFAULT_GRACE,
            drained_queues: false,
            dry_run: false,
            limit: None,
            stop,
            progress: None,
        }
    }
}

impl SweepOptions {
    /// Selects blobs that expired at least a day ago, and no others.
    pub fn new() -> Self {
        Self::default()
    }

    jobqueue_storage::setters! {
        /// Sets how long a blob is kept after its expiry. The default is a day; set more if jobs with a time
        /// to live run longer than that. The minimum is an hour.
        grace(grace: Duration) = grace.max(Duration::from_secs(3600));

        /// Also removes payloads of messages that never expire, if the payloads are at least 8 days old (or
        /// the grace, if that is more), and their queue and its dead-letter queue are empty, invisible
        /// messages included. Leaves out queues that are spread over shards, and those that the storage does
        /// not have, because another storage may have [borrowed](crate::Storage::with_blobs_of) its blobs:
        /// sweep each queue through the storage that has it, and create a deleted queue again to sweep its
        /// payloads. Do not use it while dead letters are redriven. The default is off.
        drained_queues(sweep: bool) => drained_queues;

        /// Counts the blobs that would be removed, without removing them. The default is off.
        dry_run(dry: bool) => dry_run;
    }

    /// Returns whether blobs are only counted.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    jobqueue_storage::setters! {
        /// Ends the sweep early when `token` fires: no further removal begins. The report counts the
        /// removals, at most 32, that have begun by then.
        stop(token: CancellationToken) => stop;

        /// Sets the maximum number of blobs to remove.
        limit(blobs: u64) => limit;

        /// Calls `listener` after every page of up to 5,000 blobs.
        on_progress(listener: impl Fn(&SweepReport) + Send + Sync + 'static) => progress =
            Some(Arc::new(listener));
    }
}

/// The selection, as text for the audit.
impl fmt::Display for SweepOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "grace {:?}", self.grace)?;
        if self.drained_queues {
            f.write_str(", drained queues")?;
        }
        match self.limit {
            Some(limit) => write!(f, ", at most {limit}"),
            None => Ok(()),
        }
    }
}

jobqueue_storage::debug_fields! {
    SweepOptions { grace, drained_queues, dry_run, limit }
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct SweepReport {
    /// The number of blobs that were examined.
    pub seen: u64,
    /// The number of blobs that were removed; in a dry run, that would be removed.
    pub removed: u64,
    /// The size of the removed blobs in bytes.
    pub bytes: u64,
    /// The number of blobs that should have been removed but are leased, or for which the storage failed.
    pub failed: u64,
    /// The number of blobs that stay because the storage does not have their queue, although they are old
    /// enough for a sweep of [drained queues](SweepOptions::drained_queues). The log names the queue.
    pub without_queue: u64,
}
