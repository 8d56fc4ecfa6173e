//! Copies the write-ahead log into the file.

use rusqlite::{Connection, Row};

use super::error::{Cause, from_sql};

/// The result of a checkpoint: whether it was blocked, the pages in the log, and the pages of them now in the file.
pub(super) type Progress = (bool, u32, u32);

/// Copies the log into the file.
pub(super) fn checkpoint(connection: &Connection, mode: &str) -> Result<Progress, Cause> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], progress).map_err(from_sql)
}

/// Reads the answer to `PRAGMA wal_checkpoint`.
pub(super) fn progress(row: &Row<'_>) -> rusqlite::Result<Progress> {
    let (pages, done): (i64, i64) = (row.get(1)?, row.get(2)?);
    Ok((row.get::<_, i64>(0)? != 0, u32::try_from(pages).unwrap_or(0), u32::try_from(done).unwrap_or(0)))
}
