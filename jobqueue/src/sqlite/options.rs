//! How to open a store.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::store::Store;
use crate::clock::{Clock, SystemClock};
use crate::storage::{Storage, StoreError};

/// What a commit waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Synchronous {
    /// For the disk to have the data: what was acknowledged survives a power cut.
    #[default]
    Full,
    /// For the operating system to have the data. About twice as fast from one task, and **a power cut or a crash of
    /// the system loses the last acknowledged operations**: messages sent are gone, messages deleted come back.
    /// A crash of the process alone loses nothing, and the file is never damaged. Who opens it with `Full` after a power
    /// cut may be refused, since the log then looks damaged; opening it with `Normal` once accepts the loss.
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

/// Opens queues and blobs in one SQLite file.
///
/// ```no_run
/// # async fn open() -> Result<(), jobqueue::storage::StoreError> {
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
    /// The file at `path`, which is created if it is missing; its folder must exist, on a disk of this machine.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            clock: Arc::new(SystemClock),
            synchronous: Synchronous::Full,
            busy_timeout: Duration::from_secs(10),
            max_bytes: None,
        }
    }

    /// Where the time comes from; by default the system's clock. All who use a file at once must agree on the time.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// What a commit waits for; by default [`Synchronous::Full`].
    pub fn synchronous(mut self, synchronous: Synchronous) -> Self {
        self.synchronous = synchronous;
        self
    }

    /// How long an operation waits while another process or transaction writes, before it fails with
    /// `Timeout`; by default 10 seconds. It was then certainly not applied.
    pub fn busy_timeout(mut self, timeout: Duration) -> Self {
        self.busy_timeout = timeout;
        self
    }

    /// How large the file may grow by what this handle writes, its log not counted; by default as large as the disk.
    /// What does not fit fails with `Full` and is not applied; deleting makes room.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Opens the file, and creates it, readable only by its owner, if it is missing.
    ///
    /// # Errors
    /// `InvalidInput` for what cannot hold a store: a link, folder or pipe; a read-only file; a folder that everybody may
    /// write; a network file system; the database of another program; a schema newer than this program.
    /// `Corrupt` for a damaged file, `Stopped` when its disk fails, `Timeout` when another process keeps it locked, `Unsupported` for a SQLite
    /// library older than 3.51.3.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the file unopened, or opened and closed again; it may have been created.
    pub async fn open(self) -> Result<Storage, StoreError> {
        let description = format!("sqlite:{}", self.path.display());
        let store = Arc::new(Store::open(self).await?);
        Ok(Storage::new(store.clone(), store, description))
    }
}
