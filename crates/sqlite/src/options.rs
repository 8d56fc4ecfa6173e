//! Options for opening a store.

use std::path::PathBuf;
use std::time::Duration;

use jobqueue_storage::runtime::Runtime;

/// The durability of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Synchronous {
    /// Waits until the disk has the data: acknowledged operations survive a power cut.
    #[default]
    Full,
    /// Waits until the operating system has the data. This is about twice as fast for one task, and **a power
    /// cut or a crash of the system loses the last acknowledged operations**: sent messages are gone, deleted
    /// messages come back. A crash of the process alone loses nothing, and the file is never damaged. After a
    /// power cut, opening the file with `Full` may be refused, since the log then looks damaged; opening it
    /// once with `Normal` accepts the loss.
    Normal,
}

impl Synchronous {
    pub(super) fn pragma(self) -> &'static str {
        match self {
            Self::Full => "FULL",
            Self::Normal => "NORMAL",
        }
    }
}

/// Options that open queues and blobs in one SQLite file, for `Storage::open`.
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
#[derive(Debug, Clone)]
#[must_use = "a file is opened by `Storage::open`"]
pub struct Options {
    pub(super) path: PathBuf,
    pub(super) runtime: Runtime,
    pub(super) synchronous: Synchronous,
    pub(super) busy_timeout: Duration,
    pub(super) max_bytes: Option<u64>,
    pub(super) migrates: bool,
}

impl Options {
    /// Returns options for the file at `path`. A missing file is created, unless it must [not
    /// be](Self::migrate). Its folder must exist on a disk of this machine.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            runtime: Runtime::new(),
            synchronous: Synchronous::Full,
            busy_timeout: Duration::from_secs(10),
            max_bytes: None,
            migrates: true,
        }
    }

    jobqueue_storage::setters! {
        /// Sets the runtime, from which the store and everything built on it take the time and their ids. All
        /// processes that use a file at the same time must agree on the time. Further handles of a process on
        /// the same file use the clock of the first handle.
        runtime(runtime: Runtime);

        /// Sets the durability of commits. The default is [`Synchronous::Full`].
        synchronous(synchronous: Synchronous);

        /// Sets the time that an operation that writes waits while another process or transaction writes, by
        /// default 10 seconds. After that the operation fails with `Timeout`, and was certainly not applied.
        /// Its error names the process that holds the write lock, if that can be known, as on Linux.
        busy_timeout(timeout: Duration) => busy_timeout;

        /// Sets whether opening a file creates it and its tables if they are missing, and migrates older
        /// tables; true by default. If false, opening such a file fails with `NotPrepared`, so that tools
        /// of operators change no schema by mistake.
        migrate(migrate: bool) => migrates;

        /// Sets the size in bytes up to which this handle may grow the file, without its log. By default only
        /// the disk limits it. A larger write fails with `Full` and is not applied; deletions free space.
        ///
        /// A sixteenth of the size (at least 256 KiB, at most 2 MiB, and never more than a quarter) is
        /// reserved for leases, renewals and messages that are put back. Once these have used it up, a longer
        /// text is refused, and messages that were put back are delivered before others, until deletions have
        /// freed some space.
        max_bytes(bytes: u64) => max_bytes;
    }
}
