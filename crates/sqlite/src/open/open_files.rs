//! Checks whether the database file and its write-ahead log are still the files that SQLite writes to.
//!
//! Somebody may delete or replace them: an operator who deletes the log as useless, a script that clears a folder, or a
//! program with an old SQLite that believes itself the last to close the database. SQLite does not notice, and later
//! commits go to files without a name.

use std::path::{Path, PathBuf};

use super::{log_of, platform};
use crate::error::Cause;
use jobqueue_storage::StoreErrorKind;

/// The files of an open store.
#[derive(Debug)]
pub(crate) struct OpenFiles {
    log: OpenFile,
    database: OpenFile,
}

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    /// The identities; `None` where the platform cannot distinguish files, or could not when the store was opened.
    identity: Option<platform::Identity>,
}

impl OpenFile {
    fn of(path: PathBuf) -> Self {
        Self { identity: platform::identity(&path), path }
    }

    fn is_in_place(&self) -> bool {
        self.identity.is_none() || platform::identity(&self.path) == self.identity
    }
}

impl OpenFiles {
    /// Remembers the identities of `file` and its log, both of which SQLite has open.
    pub(crate) fn of(file: &Path) -> Self {
        Self { log: OpenFile::of(log_of(file)), database: OpenFile::of(file.to_owned()) }
    }

    /// Checks after a commit that both files are still in their places.
    ///
    /// # Errors
    /// `Stopped` if a file is not in its place; it is ambiguous, since the commit may be lost.
    pub(crate) fn check(&self) -> Result<(), Cause> {
        if !self.database.is_in_place() {
            return Err(stopped(
                "its database file was deleted or replaced while it was open; what was written since then is lost. Restore a \
                 backup if there is one, and open the store again",
            ));
        }
        if !self.log.is_in_place() {
            return Err(stopped(
                "its write-ahead log was deleted or replaced while it was open; what was written since the last checkpoint \
                 may be lost",
            ));
        }
        Ok(())
    }
}

fn stopped(detail: &'static str) -> Cause {
    Cause::new(StoreErrorKind::Stopped, detail).ambiguous(true)
}
