//! Opening the file: everything that must hold before the first operation, and the settings of each connection.

mod file;
mod log;
pub(super) mod open_files;
pub(super) mod platform;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::error::{Cause, from_sql};
use super::options::{Options, Synchronous};
use super::{schema, upkeep};
use crate::storage::StoreErrorKind;
use crate::sync::lock;

/// 3.51.3, the first without the bug by which a checkpoint could lose a whole write-ahead log.
const OLDEST_LIBRARY: i32 = 3_051_003;

/// Up to what size a file is checked throughout when it is opened.
const CHECKED_BYTES: u64 = 64 << 20;

/// How long a statement waits inside SQLite for a lock; what is longer, the writer does by itself.
const READ_PATIENCE: Duration = Duration::from_secs(5);

/// How often to try again what SQLite's own waiting does not cover.
const PAUSE: Duration = Duration::from_millis(5);

/// The page size of new files, in bytes. With its event a message of 200 bytes has about 600: of pages of 4 KiB each holds six.
const PAGE: i64 = 8_192;

/// Opens go one after the other: a new file is made by hand, and closing it must not end another's locks.
static OPENING: Mutex<()> = Mutex::new(());

/// Opens the file for writing, makes or brings up its tables, and checks it.
pub(super) fn writer(options: &Options) -> Result<(Connection, PathBuf), Cause> {
    check_library(rusqlite::version_number())?;
    let _one_by_one = lock(&OPENING);
    let file = file::check(&options.path)?;
    let mut connection = connect(&file)?;
    make_ready(&mut connection, &file, options).inspect_err(|cause| {
        if cause.is_fatal() {
            leave_log(&connection);
        }
    })?;
    Ok((connection, file))
}

fn make_ready(connection: &mut Connection, file: &Path, options: &Options) -> Result<(), Cause> {
    let patience = options.busy_timeout;
    let found = retry(patience, || schema::inspect(connection))?;
    if found == schema::Found::Empty {
        connection.pragma_update(None, "page_size", PAGE).map_err(from_sql)?;
    } else {
        check_content(connection, file)?;
    }
    retry(patience, || use_log(connection))?;
    settle(connection, options.synchronous).map_err(from_sql)?;
    let is_full = options.synchronous == Synchronous::Full;
    if retry(patience, || log::secure(connection, &log_of(file), is_full))? {
        // This syncs the log, unless another process is just doing so, and empties it, unless somebody is using it.
        connection.busy_timeout(Duration::ZERO).map_err(from_sql)?;
        retry(patience, || upkeep::checkpoint(connection, "TRUNCATE"))?;
        connection.busy_timeout(READ_PATIENCE).map_err(from_sql)?;
    }
    if retry(patience, || schema::prepare(connection))? {
        // So that the file alone, without its log, says what it is.
        retry(patience, || upkeep::checkpoint(connection, "TRUNCATE"))?;
    }
    // The writer waits for locks by itself, between which it can answer those who have waited too long.
    connection.busy_timeout(Duration::ZERO).map_err(from_sql)
}

/// Has `connection` close the file without copying its log into it, after a failure: the next who opens the file finds
/// everything as it was.
pub(super) fn leave_log(connection: &Connection) {
    if let Err(error) = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true) {
        tracing::debug!(%error, "the log may be copied into the file when it is closed");
    }
}

/// Opens the file once more, for reading only.
pub(super) fn reader(file: &Path) -> Result<Connection, Cause> {
    let connection = connect(file)?;
    settle(&connection, Synchronous::Full)
        .and_then(|()| connection.pragma_update(None, "query_only", true))
        .map_err(from_sql)?;
    Ok(connection)
}

/// Opens a file that must exist, to look at it once.
pub(super) fn existing(path: &Path) -> Result<Connection, Cause> {
    let file =
        path.canonicalize().map_err(|error| Cause::new(StoreErrorKind::InvalidInput, error.to_string()))?;
    connect(&file)
}

/// The path of a file that is to be made, with its folder resolved, so that SQLite takes it for nothing else.
///
/// # Errors
/// `InvalidInput` when it exists, or names no file.
pub(super) fn target(path: &Path) -> Result<PathBuf, Cause> {
    if path.symlink_metadata().is_ok() {
        return Err(Cause::new(StoreErrorKind::InvalidInput, "the file to copy to exists; name a new one"));
    }
    file::resolve(path)
}

/// Makes an empty file that only its owner can read.
///
/// # Errors
/// `InvalidInput` when it exists or cannot be made.
pub(super) fn create_private(file: &Path) -> Result<(), Cause> {
    platform::create_private(file)
        .map_err(|error| Cause::new(StoreErrorKind::InvalidInput, format!("it cannot be created: {error}")))
}

/// The write-ahead log beside the file.
pub(super) fn log_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

fn connect(file: &Path) -> Result<Connection, Cause> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(file, flags).map_err(from_sql)?;
    connection.busy_timeout(READ_PATIENCE).map_err(from_sql)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn settle(connection: &Connection, synchronous: Synchronous) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", synchronous.pragma())?;
    // Without these, macOS only hands the data to the disk's cache.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    // An I/O error in a mapped file is a signal that ends the process.
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // Otherwise statements are planned anew when their parameters change, which is at each use.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.pragma_update(None, "cache_size", -16_000)
}

fn use_log(connection: &Connection) -> Result<(), Cause> {
    let mode: String = connection
        .pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))
        .map_err(from_sql)?;
    if mode == "wal" {
        return Ok(());
    }
    Err(Cause::new(
        StoreErrorKind::InvalidInput,
        format!(
            "SQLite keeps journal mode {mode}, since the file system cannot carry a write-ahead log; use a local disk"
        ),
    ))
}

/// A large file is only looked at here and there, so that opening stays quick; each page is checked again when read.
fn check_content(connection: &Connection, file: &Path) -> Result<(), Cause> {
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let problem: String = if bytes <= CHECKED_BYTES {
        connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0)).map_err(from_sql)?
    } else {
        connection
            .query_row(
                "SELECT now, (SELECT count(*) FROM jobqueue_queue), (SELECT max(visible_at) FROM jobqueue_message
                 WHERE queue = 1), (SELECT max(id) FROM jobqueue_message) FROM jobqueue_store",
                [],
                |_| Ok("ok".to_owned()),
            )
            .map_err(from_sql)?
    };
    if problem == "ok" {
        return Ok(());
    }
    Err(Cause::new(StoreErrorKind::Corrupt, problem))
}

fn check_library(version: i32) -> Result<(), Cause> {
    if version >= OLDEST_LIBRARY {
        return Ok(());
    }
    Err(Cause::new(
        StoreErrorKind::Unsupported,
        format!(
            "the SQLite library is {}, which can damage a write-ahead log; link 3.51.3 or newer",
            rusqlite::version()
        ),
    ))
}

fn retry<T>(patience: Duration, mut attempt: impl FnMut() -> Result<T, Cause>) -> Result<T, Cause> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(cause) if cause.kind() == StoreErrorKind::Timeout && began.elapsed() < patience => {
                std::thread::sleep(PAUSE);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_libraries_are_refused() {
        assert!(check_library(3_051_002).is_err());
        assert!(check_library(OLDEST_LIBRARY).is_ok());
        assert!(check_library(rusqlite::version_number()).is_ok());
    }
}
