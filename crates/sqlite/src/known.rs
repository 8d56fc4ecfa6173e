//! The part of the file that a connection remembers from one transaction to the next.
//!
//! It is up to date as long as no other connection has committed, which SQLite counts: a transaction reads
//! that count instead of reading everything again. After a failed transaction, nothing is known.

use std::ops::Range;

use rusqlite::{Connection, OptionalExtension, params};

use super::error::{Cause, from_sql};
use super::row_id::NUMBERS;
use super::schema;
use jobqueue_storage::QueueName;

#[derive(Default)]
pub(super) struct Known {
    /// SQLite's count of other connections' commits; `None` if nothing is known.
    version: Option<i64>,
    /// The newest time in the file.
    pub(super) seen: i64,
    /// The first number in the file that no process has reserved.
    pub(super) sequence: i64,
    /// The reserved numbers that are not used yet. They are the last reserved numbers of the file, so that
    /// numbers grow from commit to commit.
    pub(super) numbers: Range<i64>,
    /// The size of the last reservation.
    block: i64,
    pub(super) queues: Vec<(QueueName, Option<QueueRow>)>,
}

pub(super) struct QueueRow {
    pub(super) id: i64,
    /// No message with a lower row id can still be received by its number. The file may have an earlier
    /// value.
    pub(super) head: i64,
    stored_head: i64,
    /// No lease ends before this time. The file may have an earlier value.
    pub(super) due: i64,
    stored_due: i64,
    /// The leases that had ended when they were last read, the earliest last. Some may have been renewed or
    /// deleted since.
    pub(super) ended: Vec<i64>,
    /// No other lease ends before this time.
    pub(super) others_due: i64,
    /// True if messages have become visible since the last [`wake`](super::batch::Batch::wake).
    pub(super) visible: bool,
    /// True if messages have arrived since the last notification, and true if some of them were not visible
    /// at once.
    pub(super) arrived: bool,
    pub(super) delayed: bool,
    /// True if the queue may have messages of groups.
    pub(super) has_groups: bool,
    /// True if the row must be read again.
    pub(super) is_stale: bool,
}

/// The maximum number of numbers reserved at once, so that not every transaction must write the next free
/// number.
const MAX_BLOCK: i64 = 1_024;

/// The number of rows by which the head moves before it is written into the file. The next program that opens
/// the file passes up to this many rows again.
const HEAD_STEP: i64 = 1_024;

impl Known {
    /// Reads again everything that other connections may have changed. The connection holds the write lock.
    ///
    /// # Errors
    /// `Stopped` if another program has migrated the file to another schema.
    pub(super) fn refreshed(mut self, connection: &Connection) -> Result<Self, Cause> {
        let version = connection
            .prepare_cached("PRAGMA data_version")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .map_err(from_sql)?;
        if self.version == Some(version) {
            return Ok(self);
        }
        schema::require_unchanged(connection)?;
        (self.seen, self.sequence) = connection
            .prepare_cached("SELECT now, sequence FROM jobqueue_store WHERE id = 1")
            .and_then(|mut statement| statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?))))
            .map_err(from_sql)?;
        if self.sequence != self.numbers.end {
            // Other connections have reserved numbers since: the remaining numbers would be lower than
            // theirs.
            self.numbers = 0..0;
            self.block = 0;
        }
        self.queues.retain(|(_, row)| row.is_some());
        self.queues.iter_mut().flat_map(|(_, row)| row).for_each(|row| row.is_stale = true);
        self.version = Some(version);
        Ok(self)
    }

    /// Reserves numbers if none is left. Returns whether it did; the new end must then be written into the
    /// file.
    ///
    /// Each reservation is twice as large as the last, unless other connections reserve in between. So the
    /// lost numbers are never more than the used ones.
    pub(super) fn reserve(&mut self) -> bool {
        if !self.numbers.is_empty() {
            return false;
        }
        self.block = (self.block * 2).clamp(1, MAX_BLOCK);
        let end = self.sequence.saturating_add(self.block).min(NUMBERS).max(self.sequence);
        self.numbers = self.sequence..end;
        self.sequence = end;
        true
    }
}

impl QueueRow {
    /// Reads the row of a queue. A head that was `known` before stays valid.
    pub(super) fn read(
        connection: &Connection,
        name: &QueueName,
        known: Option<Self>,
    ) -> rusqlite::Result<Option<Self>> {
        let mut select = connection
            .prepare_cached("SELECT id, head, due, has_groups FROM jobqueue_queue WHERE name = ?1")?;
        let row = select.query_row([name.as_str()], |row| {
            let (id, stored_head, stored_due) = (row.get(0)?, row.get(1)?, row.get(2)?);
            let head = known
                .as_ref()
                .filter(|known| known.id == id)
                .map_or(stored_head, |known| known.head.max(stored_head));
            Ok(Self {
                id,
                head,
                stored_head,
                due: stored_due,
                stored_due,
                ended: Vec::new(),
                others_due: stored_due,
                visible: false,
                arrived: false,
                delayed: false,
                has_groups: row.get(3)?,
                is_stale: false,
            })
        });
        row.optional()
    }

    /// Writes the values that other connections need: that delayed messages arrived, a lease that ends
    /// earlier than the file says, and from time to time the rest.
    pub(super) fn write(&mut self, connection: &Connection, now: i64) -> rusqlite::Result<()> {
        let is_due = self.due < self.stored_due || (self.stored_due <= now && self.stored_due != self.due);
        let is_needed = self.delayed || is_due || self.head - self.stored_head >= HEAD_STEP;
        // A row that was not read in this transaction may be older than the file.
        if self.is_stale || !is_needed {
            return Ok(());
        }
        connection
            .prepare_cached(
                "UPDATE jobqueue_queue SET delayed = delayed + ?2, head = ?3, due = ?4 WHERE id = ?1",
            )?
            .execute(params![self.id, self.delayed, self.head, self.due])?;
        (self.stored_head, self.stored_due, self.delayed) = (self.head, self.due, false);
        Ok(())
    }
}
