//! Copies the write-ahead log into the file.

use rusqlite::{Connection, Row};

use super::error::{Cause, from_sql};

pub(super) struct Progress {
    /// True if other connections kept the checkpoint from completing.
    pub(super) busy: bool,
    /// The number of pages in the log, and the number of these that are copied into the file.
    pub(super) pages: u32,
    pub(super) copied: u32,
}

pub(super) fn checkpoint(connection: &Connection, mode: &str) -> Result<Progress, Cause> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], progress).map_err(from_sql)
}

pub(super) fn progress(row: &Row<'_>) -> rusqlite::Result<Progress> {
    let pages = |column| row.get(column).map(|pages: i64| u32::try_from(pages).unwrap_or(0));
    Ok(Progress { busy: row.get::<_, i64>(0)? != 0, pages: pages(1)?, copied: pages(2)? })
}
