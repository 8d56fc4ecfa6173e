//! Copies a store while it is in use.

use std::path::{Path, PathBuf};

use tokio::sync::oneshot;

use super::error::{Cause, from_sql};
use super::process_guard::ProcessGuard;
use super::{open, schema};
use jobqueue_storage::{StoreError, StoreErrorKind};

/// Copies the store in the file `from` to a new file `to`: its state at one moment, while others continue to use it.
///
/// Never copy the file itself while any process has it open: the copy lacks the content of the log, and closing the
/// copied file ends all locks that SQLite holds on it in this process, after which acknowledged work can be lost.
///
/// Only the owner can read the copy, like the store itself.
///
/// # Errors
/// `InvalidInput` when `to` exists or is not the path of a file (`:memory:`, a URI), or when `from` is not a store;
/// `Full` when the disk has no room.
///
/// # Cancel safety
/// If the future is dropped, the copy is finished in the background.
pub async fn backup(from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> Result<(), StoreError> {
    let (from, to) = (from.into(), to.into());
    let subject = from.display().to_string();
    let (reply, answer) = oneshot::channel();
    let copying = std::thread::Builder::new()
        .name("jobqueue-backup".to_owned())
        .spawn(move || drop(reply.send(copy(&from, &to))));
    let done = match copying {
        Ok(_) => answer.await.unwrap_or_else(|_| Err(failed("the thread that copied has ended"))),
        Err(error) => Err(failed(&error.to_string())),
    };
    done.map_err(|cause| cause.error("back up storage", subject))
}

fn copy(from: &Path, to: &Path) -> Result<(), Cause> {
    let to = open::target(to)?;
    let _guard = ProcessGuard::claim()?;
    let connection = open::existing(from)?;
    schema::require_current(&connection)?;
    // SQLite writes into an existing empty file. A file that SQLite creates itself could be world-readable.
    open::create_private(&to)?;
    let copied = connection.execute("VACUUM INTO ?1", [to.to_string_lossy()]).map_err(from_sql);
    if copied.is_err() {
        drop(std::fs::remove_file(&to));
    }
    copied.map(drop)
}

fn failed(detail: &str) -> Cause {
    Cause::new(StoreErrorKind::Unavailable, detail)
}
