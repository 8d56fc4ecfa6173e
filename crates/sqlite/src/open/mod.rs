//! Opens the file: checks all preconditions before the first operation, and configures each connection.

pub(super) mod file;
mod lock_holder;
pub(super) mod log;
mod names;
pub(super) mod open_files;
pub(super) mod platform;

use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension};

use self::log::LeftLog;
use super::checkpoint::checkpoint;
use super::error::{Cause, from_sql};
use super::options::{Options, Synchronous};
use super::schema;
use jobqueue_storage::StoreErrorKind;
use jobqueue_storage::log::{debug, warn};
use jobqueue_storage::sync::lock;

/// SQLite 3.51.3, the first version without the bug by which a checkpoint could lose a whole write-ahead log.
const OLDEST_LIBRARY: i32 = 3_051_003;

/// The maximum size of a file that is checked completely when it is opened, in bytes.
const CHECKED_BYTES: u64 = 64 << 20;

/// Returns the first damage of jobqueue's tables, each checked alone. The check of `sqlite_schema` includes the
/// list of free pages.
const FIND_DAMAGE: &str = "SELECT found.quick_check
    FROM (SELECT 'sqlite_schema' AS name UNION ALL SELECT name FROM sqlite_schema
        WHERE type = 'table' AND (name LIKE 'jobqueue\\_%' ESCAPE '\\' OR name = 'sqlite_sequence')) AS tables,
    pragma_quick_check(tables.name) AS found
    WHERE found.quick_check <> 'ok' LIMIT 1";

/// The time that a statement waits inside SQLite for a lock. For longer waits the writer waits itself.
const READ_LOCK_TIMEOUT: Duration = Duration::from_secs(5);

/// The time that an opening waits for the write lock to secure the log. After that only the first write of
/// the store waits for it.
const SECURE_PATIENCE: Duration = Duration::from_millis(250);

/// The pause between attempts where SQLite's own waiting does not apply.
const RETRY_PAUSE: Duration = Duration::from_millis(5);

/// The page size of new files, in bytes. A message of 200 bytes takes about 600 with its event; a page of 4
/// KiB holds six of these.
const PAGE_BYTES: i64 = 8_192;

/// Serialises opens: a new file is created by hand, and closing it must not end the locks of another open.
static OPENING: Mutex<()> = Mutex::new(());

/// A file that is open for writing.
pub(super) struct OpenedFile {
    pub(super) connection: Connection,
    pub(super) file: PathBuf,
    /// Must be secured before the first write.
    pub(super) left_log: LeftLog,
}

/// Opens the file for writing and checks it. Creates or migrates its tables, or fails if the options forbid
/// that. Waits for the write lock only if it has to create or migrate.
pub(super) fn writer(options: &Options) -> Result<OpenedFile, Cause> {
    check_library(rusqlite::version_number())?;
    let _one_by_one = lock(&OPENING);
    let file = file::check(&options.path, options.migrates)?;
    let mut connection = connect(&file)?;
    // The file may be a copy placed beside the former file's log, which would destroy the copy.
    let left_log = make_ready(&mut connection, &file, options).map_err(|cause| {
        keep_log_on_close(&connection, true);
        if cause.kind == StoreErrorKind::Timeout { cause.with_detail(lock_is_held(&file)) } else { cause }
    })?;
    Ok(OpenedFile { connection, file, left_log })
}

/// Returns the text of an error for a store that another process or transaction keeps locked, with what is
/// known of it.
pub(super) fn lock_is_held(file: &Path) -> String {
    lock_holder::describe(file)
}

fn make_ready(connection: &mut Connection, file: &Path, options: &Options) -> Result<LeftLog, Cause> {
    let busy_timeout = options.busy_timeout;
    if !options.migrates {
        retry(busy_timeout, || schema::require_current(connection, StoreErrorKind::NotPrepared))?;
    }
    let version = retry(busy_timeout, || schema::version(connection))?;
    if version == 0 {
        connection.pragma_update(None, "page_size", PAGE_BYTES).map_err(from_sql)?;
    } else {
        check_content(connection, file)?;
    }
    retry(busy_timeout, || use_log(connection))?;
    configure(connection, options.synchronous).map_err(from_sql)?;
    let is_full = options.synchronous == Synchronous::Full;
    // The writer waits for locks itself, so that it can answer operations that have waited too long.
    connection.busy_timeout(Duration::ZERO).map_err(from_sql)?;
    let mut left_log = LeftLog::new(log_of(file), is_full);
    let is_newest = version == schema::MIGRATIONS.len();
    let patience = if is_newest { SECURE_PATIENCE.min(busy_timeout) } else { busy_timeout };
    match retry(patience, || left_log.secure(connection)) {
        Err(cause) if is_newest && cause.kind == StoreErrorKind::Timeout => {
            left_log.check_unlocked()?;
            keep_log_on_close(connection, true);
        }
        secured => secured?,
    }
    if retry(busy_timeout, || schema::prepare(connection))? {
        // After this the file alone, without its log, shows that it is a store.
        retry(busy_timeout, || checkpoint(connection, "TRUNCATE"))?;
    }
    // A later step of the upkeep does so too.
    if left_log.is_secured() {
        schema::forget_statistics(connection)?;
    }
    retry(busy_timeout, || schema::read_again(connection))?;
    Ok(left_log)
}

/// Sets whether `connection` closes the file without copying its log into it. After a failure, the next
/// process that opens the file must find everything unchanged.
pub(super) fn keep_log_on_close(connection: &Connection, keeps: bool) {
    if let Err(error) = connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, keeps) {
        debug!(%error, "the log may be copied into the file when it is closed");
    }
}

/// Opens the file once more, read-only.
pub(super) fn reader(file: &Path) -> Result<Connection, Cause> {
    let connection = connect(file)?;
    configure(&connection, Synchronous::Full)
        .and_then(|()| connection.pragma_update(None, "query_only", true))
        .map_err(from_sql)?;
    Ok(connection)
}

/// Opens a file that must exist, to read it once.
pub(super) fn existing(path: &Path) -> Result<Connection, Cause> {
    let file = path.canonicalize().map_err(|error| file::refuse(error.to_string()))?;
    connect(&file::check(&file, false)?)
}

/// Returns the path of the write-ahead log beside the file.
pub(super) fn log_of(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

fn connect(file: &Path) -> Result<Connection, Cause> {
    let flags =
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_NOFOLLOW;
    let connection = Connection::open_with_flags(file, flags).map_err(from_sql)?;
    connection.busy_timeout(READ_LOCK_TIMEOUT).map_err(from_sql)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

fn configure(connection: &Connection, synchronous: Synchronous) -> rusqlite::Result<()> {
    connection.pragma_update(None, "synchronous", synchronous.pragma())?;
    // Without these settings, macOS passes the data only to the disk's cache.
    connection.pragma_update(None, "fullfsync", true)?;
    connection.pragma_update(None, "checkpoint_fullfsync", true)?;
    // An I/O error in a mapped file raises a signal that ends the process.
    connection.pragma_update(None, "mmap_size", 0)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.pragma_update(None, "trusted_schema", false)?;
    // Otherwise SQLite plans a statement again whenever its parameters change, which is at each use.
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

/// Checks the file. A large file is checked only in part, so that opening stays quick; each page is checked
/// again when it is read.
fn check_content(connection: &Connection, file: &Path) -> Result<(), Cause> {
    let bytes = file.metadata().map_or(0, |metadata| metadata.len());
    let problem = if bytes <= CHECKED_BYTES {
        find_damage(connection).map_err(from_sql)?
    } else {
        connection
            .query_row(
                // Tables and columns that every version of the schema has.
                "SELECT now, (SELECT count(*) FROM jobqueue_queue), (SELECT max(id) FROM jobqueue_message) FROM jobqueue_store",
                [],
                |_| Ok(None),
            )
            .map_err(from_sql)?
    };
    problem.map_or(Ok(()), |problem| Err(Cause::new(StoreErrorKind::Corrupt, problem)))
}

/// Returns the first damage of the file. `CHECK` constraints are left out: those of the application may call
/// functions that only its own connections have, and a row that breaks one is no damage.
fn find_damage(connection: &Connection) -> rusqlite::Result<Option<String>> {
    connection.pragma_update(None, "ignore_check_constraints", true)?;
    let damage = first_damage(connection);
    connection.pragma_update(None, "ignore_check_constraints", false).and(damage)
}

/// Only a check of the whole file finds a page that is used twice. It compares the pages first, and then the
/// rows of each table. It cannot be prepared where the application's tables need functions or collations for
/// columns and indexes, and damage of their rows alone, or a row that breaks their declaration, is no reason
/// to stop the queues: then jobqueue's tables are checked alone. The text of a problem names tables, indexes
/// and columns, and has no content of rows.
fn first_damage(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let whole = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get::<_, String>(0));
    let is_of_rows = match &whole {
        Ok(answer) if answer == "ok" => return Ok(None),
        Ok(problem) => !problem.starts_with("*** in database"),
        // A function that is missing, and a collation that is.
        Err(rusqlite::Error::SqlInputError { .. }) => true,
        Err(error) => error.sqlite_error_code() == Some(ErrorCode::Unknown),
    };
    if !is_of_rows {
        return whole.map(Some);
    }
    let damage: Option<String> = connection.query_row(FIND_DAMAGE, [], |row| row.get(0)).optional()?;
    if let (None, Ok(problem)) = (&damage, &whole) {
        warn!(
            problem = problem.as_str(),
            "SQLite found a problem in a table of the application, which can be a sign of a failing disk; \
             `PRAGMA integrity_check` shows more"
        );
    }
    Ok(damage)
}

fn check_library(version: i32) -> Result<(), Cause> {
    if version >= OLDEST_LIBRARY {
        return Ok(());
    }
    Err(Cause::new(
        StoreErrorKind::Unsupported,
        format!(
            "the SQLite library is {}, which can damage a write-ahead log; link 3.51.3 or newer: a crate in your program \
             keeps `libsqlite3-sys` below 0.37 (`cargo tree -i libsqlite3-sys` names it; update it, such as sqlx to \
             0.9), or build with LIBSQLITE3_SYS_USE_PKG_CONFIG=1 where the system has a newer library",
            rusqlite::version()
        ),
    ))
}

fn retry<T>(timeout: Duration, mut attempt: impl FnMut() -> Result<T, Cause>) -> Result<T, Cause> {
    let began = Instant::now();
    loop {
        match attempt() {
            Err(cause) if cause.kind == StoreErrorKind::Timeout && began.elapsed() < timeout => {
                std::thread::sleep(RETRY_PAUSE);
            }
            result => return result,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn old_libraries_are_refused() {
        let refused = check_library(3_051_002).unwrap_err().error("open storage", "jobs.db");
        assert_eq!(refused.kind(), StoreErrorKind::Unsupported);
        let text = refused.to_string();
        for word in [
            "3.51.3 or newer",
            "cargo tree -i libsqlite3-sys",
            "sqlx to 0.9",
            "LIBSQLITE3_SYS_USE_PKG_CONFIG=1",
        ] {
            assert!(text.contains(word), "{text}");
        }
        assert!(check_library(OLDEST_LIBRARY).is_ok());
        assert!(check_library(rusqlite::version_number()).is_ok());
    }

    #[test]
    fn file_of_an_older_version_is_migrated_only_where_it_may_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        of_the_first_version(&path).close().unwrap();
        let before = std::fs::read(&path).unwrap();
        let options = Options::new(&path);
        let refused =
            writer(&options.clone().migrate(false)).map(drop).unwrap_err().error("open storage", "jobs.db");
        assert_eq!(refused.kind(), StoreErrorKind::NotPrepared, "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), before);
        for migrates in [true, false] {
            writer(&options.clone().migrate(migrates))
                .map_err(|cause| cause.error("open", "jobs.db"))
                .unwrap();
        }
    }

    fn of_the_first_version(path: &Path) -> Connection {
        let connection = Connection::open(path).unwrap();
        connection.execute_batch(schema::MIGRATIONS[0]).unwrap();
        connection.pragma_update(None, "application_id", schema::APPLICATION_ID).unwrap();
        connection.pragma_update(None, "user_version", 1).unwrap();
        connection
    }

    /// A file too large for a complete check is checked in part before it is migrated, so the check must know
    /// its older form.
    #[test]
    fn large_file_of_the_first_version_is_opened_and_migrated() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let connection = of_the_first_version(&path);
        let large = "INSERT INTO jobqueue_message VALUES (1, 1, 0, NULL, 0, 0, 0, x'00', ?1)";
        connection.execute(large, ["x".repeat(CHECKED_BYTES as usize)]).unwrap();
        connection.close().unwrap();
        assert!(path.metadata().unwrap().len() > CHECKED_BYTES);
        for _ in 0..2 {
            let OpenedFile { connection, .. } =
                writer(&Options::new(&path)).map_err(|cause| cause.error("open", "jobs.db")).unwrap();
            let messages = "SELECT count(*) FROM jobqueue_message WHERE waiting = 0";
            assert_eq!(connection.query_row(messages, [], |row| row.get::<_, i64>(0)).unwrap(), 1);
        }
    }
}
