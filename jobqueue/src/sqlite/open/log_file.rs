//! Whether the write-ahead log is still the file that SQLite writes to.
//!
//! Somebody may delete it: an operator who takes it for rubbish, or another program with an old SQLite, which thinks that it is
//! the last to close the database, after this one has ended its own locks by copying the file with its own hands. SQLite does not
//! notice, and what is committed from then on goes to a file without a name.

use std::path::{Path, PathBuf};

use super::{log_of, platform};
use crate::sqlite::error::Cause;
use crate::storage::StoreErrorKind;

/// The log of an open file.
#[derive(Debug)]
pub(in crate::sqlite) struct LogFile {
    path: PathBuf,
    /// `None` where files cannot be told apart, or could not be when the store was opened.
    identity: Option<platform::Identity>,
}

impl LogFile {
    /// The log of `file`, which SQLite has open.
    pub(in crate::sqlite) fn of(file: &Path) -> Self {
        let path = log_of(file);
        Self { identity: platform::identity(&path), path }
    }

    /// Whether it is still in its place, asked after a commit.
    ///
    /// # Errors
    /// `Stopped`, and ambiguous: the commit may be lost.
    pub(in crate::sqlite) fn check(&self) -> Result<(), Cause> {
        if self.identity.is_none() || platform::identity(&self.path) == self.identity {
            return Ok(());
        }
        Err(Cause::new(
            StoreErrorKind::Stopped,
            "its write-ahead log was deleted or replaced while it was open; what was written since the last checkpoint may be \
             lost",
        )
        .ambiguous(true))
    }
}
