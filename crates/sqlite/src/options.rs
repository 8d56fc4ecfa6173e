//! Options for opening a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::store::Store;
use crate::clock::{Clock, SystemClock};
use crate::error::{Error, ErrorKind};
use crate::storage::Storage;

/// The point up to which a commit waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Synchronous {
    /// Waits until the disk has the data: acknowledged operations survive a power cut.
    #[default]
    Full,
    /// Waits until the operating system has the data. This is about twice as fast for one task, and **a power cut or a
    /// crash of the system loses the last acknowledged operations**: sent messages are gone, deleted messages come
    /// back. A crash of the process alone loses nothing, and the file is never damaged. After a power cut, opening the
    /// file with `Full` may be refused, since the log then looks damaged; opening it once with `Normal` accepts the
    /// loss.
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

/// Options that open queues and blobs in one SQLite file.
///
/// ```no_run
/// # async fn open() -> Result<(), jobqueue::Error> {
/// use jobqueue::sqlite::Options;
/// use std::time::Duration;
///
/// let storage = Options::new("jobs.db").busy_timeout(Duration::from_secs(30)).open().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone)]
#[must_use = "a file is opened by `open`"]
pub struct Options {
    pub(super) path: PathBuf,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) synchronous: Synchronous,
    pub(super) busy_timeout: Duration,
    pub(super) max_bytes: Option<u64>,
}

impl Options {
    /// Returns options for the file at `path`, which is created if it is missing. Its folder must exist on a disk of
    /// this machine.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            clock: Arc::new(SystemClock),
            synchronous: Synchronous::Full,
            busy_timeout: Duration::from_secs(10),
            max_bytes: None,
        }
    }

    /// Sets the clock, by default the system's. All processes that use a file at once must agree on the time.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the point up to which a commit waits, by default [`Synchronous::Full`].
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// Sets the time that an operation waits while another process or transaction writes, by default 10 seconds. After
    /// it the operation fails with `Timeout`, and was certainly not applied.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// Sets the size in bytes up to which this handle may grow the file, without its log; by default it is limited only
    /// by the disk. A larger write fails with `Full` and is not applied; deleting makes room.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Opens the file, and creates it, readable only by its owner, if it is missing.
    ///
    /// # Errors
    /// [`Storage`](ErrorKind::Storage), whose source is the [`StoreError`](crate::storage::StoreError). Its kind is:
    /// `InvalidInput` if the path cannot hold a store: a link, folder or pipe; a read-only file; a folder that
    /// everybody may write; a network file system; the database of another program; a schema newer than this program.
    /// `Corrupt` for a damaged file, `Stopped` when its disk fails, `Timeout` when another process keeps it locked,
    /// `Unsupported` for a SQLite library older than 3.51.3.
    ///
    /// # Cancel safety
    /// If the future is dropped, the file is not opened, or opened and closed again; it may have been created.
    pub async fn open(self) -> Result<Storage, Error> {
        let path = self.path.clone();
        let description = format!("sqlite:{}", self.path.display());
        let store = Store::open(self).await.map_err(|cause| {
            let text = format!("the SQLite file `{}` cannot be used", path.display());
            Error::new(ErrorKind::Storage, text).with_retryable(cause.is_retryable()).with_source(cause)
        })?;
        let store = Arc::new(store);
        Ok(Storage::new(store.clone(), store, description))
    }
}
