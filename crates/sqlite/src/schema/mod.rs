//! Manages the tables of the file and their version.
//!
//! The file's `application_id` says that it belongs to jobqueue; its `user_version` is the version of the
//! schema. A new version of the schema is a file `vN.sql` that changes version N−1, added to [`MIGRATIONS`].

use std::sync::Arc;

use base64::Engine as _;
use base64::alphabet;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior, params};

use super::error::{Cause, from_sql};
use jobqueue_storage::StoreErrorKind;

/// `jobq` in ASCII.
pub(super) const APPLICATION_ID: i32 = 0x6a6f_6271;

/// The migrations. Each changes a file from the previous version to the next; the first creates the tables.
/// Each must change the text of a table or an index, because [`version`] compares these texts.
pub(super) const MIGRATIONS: &[&str] = &[
    include_str!("v1.sql"),
    include_str!("v2.sql"),
    include_str!("v3.sql"),
    include_str!("v4.sql"),
    include_str!("v5.sql"),
];

/// Selects the tables and indexes of jobqueue, as one text.
const TABLES: &str = "SELECT group_concat(sql, ';' ORDER BY name) FROM sqlite_schema WHERE name LIKE 'jobqueue\\_%' ESCAPE '\\'";

/// The last version that kept the order of jobs in a log outside the queue.
const BEFORE_GROUPS: usize = 2;

/// Base64 of both alphabets, with or without padding.
const STANDARD: GeneralPurpose = GeneralPurpose::new(&alphabet::STANDARD, PADDED_OR_NOT);
const URL_SAFE: GeneralPurpose = GeneralPurpose::new(&alphabet::URL_SAFE, PADDED_OR_NOT);
const PADDED_OR_NOT: GeneralPurposeConfig =
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent);

/// Returns the version of the file's schema; zero for a file without tables.
///
/// # Errors
/// `InvalidInput` for a file of another program, or of a newer version than this program's; the text says
/// what to do.
pub(super) fn version(connection: &Connection) -> Result<usize, Cause> {
    // One statement reads both: between two statements, another process could create the tables.
    let select = format!(
        "SELECT (SELECT application_id FROM pragma_application_id), (SELECT user_version FROM pragma_user_version),
             (SELECT count(*) FROM sqlite_schema), ({TABLES})"
    );
    let (application, version, count, tables): (i32, i64, i64, Option<String>) = connection
        .query_row(&select, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
        .map_err(from_sql)?;
    if application == APPLICATION_ID {
        let is_newest = version == MIGRATIONS.len() as i64;
        // A library for migrations keeps the version of the application's tables in the same place.
        let is_set_by_others = !is_newest && tables == Some(newest_tables()?);
        return match usize::try_from(version) {
            Ok(version) if (1..=MIGRATIONS.len()).contains(&version) && !is_set_by_others => {
                refuse_external_objects(connection)?;
                Ok(version)
            }
            _ => Err(refuse(other_version(version, is_set_by_others))),
        };
    }
    if application == 0 && version == 0 && count == 0 {
        return Ok(0);
    }
    Err(refuse(
        "the file is a SQLite database of another program; let jobqueue create a file of its own, and move \
         tables that share its transactions there: the page `storages` of the guide has the SQL, under \
         `A database that exists already`",
    ))
}

/// Returns [`TABLES`] of a file of the newest version.
fn newest_tables() -> Result<String, Cause> {
    let new = Connection::open_in_memory().map_err(from_sql)?;
    migrate(&new, 0)?;
    new.query_row(TABLES, [], |row| row.get(0)).map_err(from_sql)
}

/// Returns the error text for a file whose version does not match its tables, or is newer than this
/// program's, with advice.
fn other_version(version: i64, has_newest_tables: bool) -> String {
    let newest = MIGRATIONS.len();
    let (tables, number) = if has_newest_tables {
        (format!("the tables of version {newest}"), newest.to_string())
    } else {
        ("other tables".to_owned(), "what it was".to_owned())
    };
    let set_back = format!(
        "if a program has set `PRAGMA user_version` for tables of its own, set it back to {number}: it belongs to jobqueue"
    );
    if version > newest as i64 && !has_newest_tables {
        return format!(
            "the file has schema version {version}, this program supports 1 to {newest}; use a newer version of jobqueue, or, {set_back}"
        );
    }
    format!("the file has schema version {version} and {tables}; {set_back}")
}

/// Refuses a file in which objects of another program affect jobqueue's tables: a trigger on one of them, or
/// a view in place of one.
fn refuse_external_objects(connection: &Connection) -> Result<(), Cause> {
    let found: Option<(String, String)> = connection
        .query_row(
            "SELECT type, name FROM sqlite_schema WHERE (type = 'trigger' AND tbl_name LIKE 'jobqueue\\_%' ESCAPE '\\')
                 OR (type = 'view' AND name LIKE 'jobqueue\\_%' ESCAPE '\\') LIMIT 1",
            [],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .map_err(from_sql)?;
    let Some((kind, name)) = found else { return Ok(()) };
    let name = name.escape_debug();
    Err(refuse(format!("the {kind} `{name}` uses or replaces a table of jobqueue; drop it")))
}

/// Checks that the file has the newest schema, for connections that must not migrate it. Otherwise returns an
/// error of `kind`.
pub(super) fn require_current(connection: &Connection, kind: StoreErrorKind) -> Result<(), Cause> {
    if version(connection)? == MIGRATIONS.len() {
        return Ok(());
    }
    let advice = format!(
        "the file has no jobqueue tables of version {}; a program of this version that opens it with sqlite::Options makes them",
        MIGRATIONS.len()
    );
    Err(Cause::new(kind, advice))
}

/// Checks that the file still has the schema that it had when it was opened, because a newer program may
/// migrate it in the meantime. Reads and writes call this in their transaction, unless no other connection
/// has committed since.
pub(super) fn require_unchanged(connection: &Connection) -> Result<(), Cause> {
    let version: i64 = connection
        .prepare_cached("PRAGMA user_version")
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(from_sql)?;
    if version == MIGRATIONS.len() as i64 {
        return Ok(());
    }
    let tables: Option<String> = connection.query_row(TABLES, [], |row| row.get(0)).map_err(from_sql)?;
    let has_newest_tables = tables == Some(newest_tables()?);
    Err(Cause::new(StoreErrorKind::Stopped, other_version(version, has_newest_tables)))
}

/// Migrates the file to the newest schema; returns true if it changed anything. If several processes try at
/// once, only one migrates.
pub(super) fn prepare(connection: &mut Connection) -> Result<bool, Cause> {
    if version(connection)? == MIGRATIONS.len() {
        return Ok(false);
    }
    let transaction =
        connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(from_sql)?;
    let from = version(&transaction)?;
    migrate(&transaction, from)?;
    transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(from_sql)?;
    transaction.pragma_update(None, "user_version", MIGRATIONS.len() as i64).map_err(from_sql)?;
    transaction.commit().map_err(from_sql)?;
    Ok(from < MIGRATIONS.len())
}

/// Migrates the tables of version `from` to the newest version.
fn migrate(connection: &Connection, from: usize) -> Result<(), Cause> {
    for (version, step) in MIGRATIONS.iter().enumerate().skip(from) {
        if version == BEFORE_GROUPS {
            decode_texts(connection).map_err(from_sql)?;
        }
        connection.execute_batch(step).map_err(|error| of_step(error, version))?;
    }
    Ok(())
}

/// Translates the failure of a migration of the tables of `version`. SQLite has no more specific code for a
/// table or column that already exists or is missing.
fn of_step(error: rusqlite::Error, version: usize) -> Cause {
    let is_of_text = matches!(error, rusqlite::Error::SqlInputError { .. });
    if !is_of_text && error.sqlite_error_code() != Some(ErrorCode::Unknown) {
        return from_sql(error);
    }
    refuse(other_version(version as i64, false)).with_source(error)
}

/// Decodes base64 texts for the migration that reads the keys of events.
fn decode_texts(connection: &Connection) -> rusqlite::Result<()> {
    let table = "CREATE TEMP TABLE jobqueue_decoded (id INTEGER PRIMARY KEY, text TEXT NOT NULL)";
    connection.execute_batch(table)?;
    let mut insert = connection.prepare("INSERT INTO temp.jobqueue_decoded VALUES (?1, ?2)")?;
    let mut texts = connection.prepare("SELECT id, text FROM jobqueue_message WHERE NOT json_valid(text)")?;
    let mut texts = texts.query([])?;
    while let Some(row) = texts.next()? {
        let text: String = row.get(1)?;
        let packed: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let bytes = STANDARD.decode(&packed).or_else(|_| URL_SAFE.decode(&packed));
        if let Some(decoded) = bytes.ok().and_then(|bytes| String::from_utf8(bytes).ok()) {
            insert.execute(params![row.get::<_, i64>(0)?, decoded])?;
        }
    }
    Ok(())
}

/// Removes the statistics that `ANALYZE` has stored about jobqueue's tables. After an `ANALYZE` at a quiet
/// moment, SQLite would take tables for empty and read all of them instead of searching. Other connections
/// read the schema again at their next transaction.
///
/// Returns whether there were any to remove. On a full file, or while another process writes, they stay until
/// the next call: the store works with them, only slower.
pub(super) fn forget_statistics(connection: &Connection) -> Result<bool, Cause> {
    let forget = || {
        let tables = "SELECT name FROM sqlite_schema WHERE name IN ('sqlite_stat1', 'sqlite_stat4')";
        let mut tables = connection.prepare_cached(tables)?;
        let tables = tables.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<Vec<String>>>()?;
        let mut is_found = false;
        for table in &tables {
            let found = format!("SELECT EXISTS (SELECT 1 FROM {table} WHERE tbl GLOB 'jobqueue_*')");
            is_found |= connection.query_row(&found, [], |row| row.get::<_, bool>(0))?;
        }
        if is_found {
            let transaction = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)?;
            for table in tables {
                transaction.execute(&format!("DELETE FROM {table} WHERE tbl GLOB 'jobqueue_*'"), [])?;
            }
            // Other connections discard the statistics that they have read only after a change of the schema.
            transaction.execute_batch(
                "CREATE TABLE jobqueue_forget (a INTEGER) STRICT; DROP TABLE jobqueue_forget",
            )?;
            transaction.commit()?;
        }
        Ok(is_found)
    };
    match forget().map_err(from_sql) {
        Err(cause) if matches!(cause.kind, StoreErrorKind::Full | StoreErrorKind::Timeout) => Ok(false),
        done => done,
    }
}

/// Makes the connection discard the statistics that it has read with the schema, including statistics that
/// another connection has removed since.
pub(super) fn read_again(connection: &Connection) -> Result<(), Cause> {
    connection.execute_batch("PRAGMA writable_schema = RESET").map_err(from_sql)
}

fn refuse(detail: impl Into<Arc<str>>) -> Cause {
    Cause::new(StoreErrorKind::InvalidInput, detail)
}

#[cfg(test)]
mod tests;
