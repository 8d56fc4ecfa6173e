//! Copies a store while it is in use.

use std::fs::File;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;
use tokio::task::spawn_blocking;

use super::error::{Cause, from_sql};
use super::open::{self, file};
#[cfg(doc)]
use super::options::Options;
use super::process_guard::ProcessGuard;
use super::schema;
use jobqueue_storage::fast::hex::to_hex;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{StoreError, StoreErrorKind};

/// Copies the store in the file `from` to a new file `to`: its state at one moment, while other processes
/// continue to use it.
///
/// Never copy the file itself while any process has it open: the copy lacks the content of the log, and
/// closing the copied file ends all locks that SQLite holds on it in this process, after which acknowledged
/// work can be lost.
///
/// The log that a killed process has left is checked for damage by an [opening](Options::new), not here: open
/// a store that no process has open before its copy is made.
///
/// The copy is one read transaction: until it ends, the store's log keeps everything written to it, and
/// grows.
///
/// To restore a copy, end all processes, move the file away together with its `-wal` and `-shm`, and copy the
/// backup to the file's name. SQLite takes a log that a killed process has left beside a file for that file's
/// log, and would destroy the restored copy with it.
///
/// Only the owner can read the copy, like the store itself. The copy gets the name `to` only when it is
/// complete and synced. A process that is killed before leaves `to.<random digits>.part`, which can be
/// deleted.
///
/// # Errors
/// `InvalidInput` if `to` exists, is not the path of a file (`:memory:`, a URI) or is not UTF-8.
/// `InvalidInput` if `from` is not a store, or is a store that would not be [opened](Options::new) either,
/// such as a file with a second name or on a network file system. `Unsupported` if a constraint, a generated
/// column or an index of the application needs a function or a collation that its program registers: SQLite
/// makes all tables again in the copy, and this connection has neither. Then execute
/// `VACUUM INTO 'copy.db'` on a connection that has them. `Full` if the disk has no room.
///
/// # Panics
/// Outside a tokio runtime. A runtime that shuts down waits for the copy.
///
/// # Cancel safety
/// If the future is dropped, the copy is finished in the background.
pub async fn backup(from: impl Into<PathBuf>, to: impl Into<PathBuf>) -> Result<(), StoreError> {
    let (from, to) = (from.into(), to.into());
    let subject = from.display().to_string();
    let copied = spawn_blocking(move || copy(&from, &to)).await;
    let ended = |_| Err(Cause::new(StoreErrorKind::Unavailable, "the thread that copied has ended"));
    copied.unwrap_or_else(ended).map_err(|cause| cause.error("back up storage", subject))
}

fn copy(from: &Path, to: &Path) -> Result<(), Cause> {
    if to.symlink_metadata().is_ok() {
        return Err(file::refuse("the target file exists; choose a new one"));
    }
    let to = file::resolve(to)?;
    if to.to_str().is_none() {
        return Err(file::refuse("SQLite cannot write to a path that is not UTF-8; choose another one"));
    }
    let _guard = ProcessGuard::claim()?;
    let connection = open::existing(from)?;
    open::keep_log_on_close(&connection, true);
    schema::require_current(&connection, StoreErrorKind::InvalidInput)?;
    // An incomplete copy must not look like a complete one, so it gets its name last. Until then its name is
    // random: another backup to the same name may run in another container, under the same process id.
    let mut part = to.clone().into_os_string();
    part.push(format!(".{}.part", to_hex(&Runtime::new().random_bytes::<12>())));
    let part = PathBuf::from(part);
    // SQLite writes into an existing empty file. A file created by SQLite itself could be world-readable.
    drop(file::create(&part).map_err(|error| file::cannot_create(&error))?);
    let copied = connection.execute("VACUUM INTO ?1", [part.to_string_lossy()]).map_err(not_copied);
    let named = copied.and_then(|_| complete(&part, &to));
    if named.is_err() {
        drop(std::fs::remove_file(&part));
    }
    named
}

/// Translates the failure of a copy. SQLite has no more specific code for a function or a collation that is
/// missing.
fn not_copied(error: rusqlite::Error) -> Cause {
    if error.sqlite_error_code() != Some(ErrorCode::Unknown) {
        return from_sql(error);
    }
    let advice = "a table of the application needs a function or a collation of its program; \
        execute `VACUUM INTO 'copy.db'` on a connection that has it";
    Cause::new(StoreErrorKind::Unsupported, advice).with_source(error)
}

/// Syncs a copy and renames it to its final name.
fn complete(part: &Path, to: &Path) -> Result<(), Cause> {
    let named = File::open(part).and_then(|file| file.sync_all()).and_then(|()| {
        // A file that appears between the two calls is overwritten; nothing can prevent that.
        if to.symlink_metadata().is_ok() {
            Err(ErrorKind::AlreadyExists.into())
        } else {
            std::fs::rename(part, to)
        }
    });
    #[cfg(unix)]
    let named = named.and_then(|()| File::open(to.parent().unwrap_or(Path::new(".")))?.sync_all());
    named.map_err(|error| {
        Cause::new(StoreErrorKind::Unavailable, format!("the copy cannot be named: {error}"))
    })
}
