//! Checks whether the database file and its write-ahead log are still the files that SQLite writes to.
//!
//! An operator may delete the log as useless, a script may clear the folder, or a program with an old SQLite
//! may close the database as its last user. SQLite does not notice that the files are gone or replaced, and
//! later commits go to files without a name.

use std::path::{Path, PathBuf};

use super::{log_of, platform};
use crate::error::Cause;
use jobqueue_storage::StoreErrorKind;

#[derive(Debug)]
pub(crate) struct OpenFiles([OpenFile; 2]);

#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    /// `None` if the platform cannot distinguish files, or could not when the store was opened.
    identity: Option<platform::Identity>,
    /// The error text if the file is not in its place.
    lost: &'static str,
}

impl OpenFiles {
    /// Remembers the identities of `file` and its log, both of which SQLite has open.
    pub(crate) fn of(file: &Path) -> Self {
        let open = |path: PathBuf, lost| OpenFile { identity: platform::identity(&path), path, lost };
        Self([
            open(
                file.to_owned(),
                "its database file was deleted or replaced while it was open; what was written since then is lost. \
                 Restore a backup if there is one, and open the store again",
            ),
            open(
                log_of(file),
                "its write-ahead log was deleted or replaced while it was open; what was written since the last \
                 checkpoint may be lost",
            ),
        ])
    }

    /// Returns the path of the database file.
    pub(crate) fn database(&self) -> &Path {
        &self.0[0].path
    }

    /// Checks after a commit that both files are still in their places. The error is ambiguous, because the
    /// commit may be lost.
    pub(crate) fn check(&self) -> Result<(), Cause> {
        for OpenFile { path, identity, lost } in &self.0 {
            if identity.is_some() && platform::identity(path) != *identity {
                return Err(Cause::new(StoreErrorKind::Stopped, *lost).ambiguous(true));
            }
        }
        Ok(())
    }
}
