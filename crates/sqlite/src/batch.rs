//! One write transaction in which many operations may run: its time, its source of ids, and the queues it changes.
//!
//! The batch notes the queues in which messages arrive, so that the writer can wake their subscriptions.

use std::time::SystemTime;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::clock::{StoreClock, to_instant};
use super::error::{Applied, Failure};
use super::ids::Ids;
use super::new_row::{self, NewRow, Pending};
use super::statements::Statements;
use jobqueue_storage::QueueName;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{Operation, PutMessage, StoreError, StoreErrorKind};

/// An open write transaction.
pub(super) struct Batch<'c> {
    connection: &'c Connection,
    runtime: Runtime,
    /// The newest time that the file has seen.
    seen: i64,
    now: i64,
    ids: Ids,
    /// The first number in the file that no process has reserved.
    sequence: i64,
    /// True if the row of the store must be written. It is not written in each transaction, since its page would be
    /// synced each time.
    note: bool,
    changed: bool,
    queues: Vec<(QueueName, Option<QueueRow>)>,
    statements: Statements<'c>,
    /// Messages that were put and are not inserted yet.
    pending: Vec<Pending>,
}

/// A queue as this transaction knows it.
#[derive(Clone, Copy)]
struct QueueRow {
    id: i64,
    /// True if messages have become visible since this was last asked.
    visible: bool,
    /// True if messages have arrived since the last notification, and true if some of the messages were not visible at once.
    arrived: bool,
    delayed: bool,
    /// True if the queue may have messages of groups.
    has_groups: bool,
}

/// The results of a transaction, for use after its commit.
pub(super) struct Finished {
    /// The queues whose subscriptions are to be notified.
    pub(super) arrived: Vec<QueueName>,
    /// The reserved numbers that are left.
    pub(super) ids: Ids,
}

/// The maximum age of the latest time in the file, in milliseconds. After the wall clock is set back, a process that
/// starts then may observe up to this much time twice.
const NOTE_EVERY: i64 = 1_000;

impl<'c> Batch<'c> {
    /// Wraps a transaction that holds the write lock.
    pub(super) fn begin(connection: &'c Connection, clock: &StoreClock, ids: Ids) -> rusqlite::Result<Self> {
        let (seen, sequence): (i64, i64) = connection
            .prepare_cached("SELECT now, sequence FROM jobqueue_store WHERE id = 1")?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut batch = Self {
            connection,
            runtime: clock.runtime().clone(),
            seen,
            now: seen,
            ids,
            sequence,
            note: false,
            changed: false,
            queues: Vec::new(),
            statements: Statements::new(connection),
            pending: Vec::new(),
        };
        batch.look_at(clock);
        Ok(batch)
    }

    /// Reads the present time again, for operations that were requested after the transaction began: a lease must not
    /// end before its owner thinks so.
    pub(super) fn look_at(&mut self, clock: &StoreClock) {
        self.now = clock.now(self.now);
        self.note |= self.now - self.seen >= NOTE_EVERY || clock.is_ahead();
    }

    /// Returns the source of receipts.
    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn connection(&self) -> &'c Connection {
        self.connection
    }

    /// Returns a statement: prepared once per connection, and looked up once per transaction.
    pub(super) fn statement(&mut self, sql: &'static str) -> rusqlite::Result<&mut CachedStatement<'c>> {
        self.statements.get(sql)
    }

    /// Returns the present time in milliseconds since 1970.
    pub(super) fn now(&self) -> i64 {
        self.now
    }

    pub(super) fn instant(&self) -> SystemTime {
        to_instant(self.now)
    }

    /// Returns a number that no message or tag has had before.
    pub(super) fn next(&mut self) -> Applied<i64> {
        self.changed = true;
        if let Some(next) = self.ids.allocate() {
            return Ok(next);
        }
        self.note = true;
        let next = self.ids.reserve(self.sequence).and_then(|sequence| {
            self.sequence = sequence;
            self.ids.allocate()
        });
        next.ok_or_else(|| {
            let full = StoreError::new(StoreErrorKind::Full, "allocate a number", "");
            full.with_detail("all numbers are used up").into()
        })
    }

    /// Notes that something was written, so that the transaction is committed.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Returns the row id of a queue.
    ///
    /// # Errors
    /// `QueueNotFound` if there is no queue of this name.
    pub(super) fn queue(&mut self, operation: Operation, name: &QueueName) -> Applied<i64> {
        match self.row(name)? {
            Some(row) => Ok(row.id),
            None => Err(StoreError::new(StoreErrorKind::QueueNotFound, operation.as_str(), name).into()),
        }
    }

    /// Returns whether the queue may have messages of groups.
    pub(super) fn has_groups(&mut self, name: &QueueName) -> rusqlite::Result<bool> {
        Ok(self.row(name)?.is_some_and(|row| row.has_groups))
    }

    /// Notes that the queue has messages of groups.
    pub(super) fn begin_groups(&mut self, name: &QueueName) -> rusqlite::Result<()> {
        let Some(row) = self.row(name)?.filter(|row| !row.has_groups) else { return Ok(()) };
        row.has_groups = true;
        let id = row.id;
        self.connection
            .prepare_cached("UPDATE jobqueue_queue SET has_groups = 1 WHERE id = ?1")?
            .execute([id])?;
        Ok(())
    }

    /// Notes that messages of the queue become visible at `visible_at` at the latest.
    pub(super) fn arrive(&mut self, name: &QueueName, visible_at: i64) -> rusqlite::Result<()> {
        self.changed = true;
        let delayed = visible_at > self.now;
        if let Some(row) = self.row(name)? {
            row.arrived = true;
            row.visible |= !delayed;
            row.delayed |= delayed;
        }
        Ok(())
    }

    /// Returns whether messages have become visible since [`wake`](Self::wake).
    pub(super) fn has_visible(&self) -> bool {
        self.queues.iter().any(|(_, row)| row.is_some_and(|row| row.visible))
    }

    /// Calls `wake` for each queue in which messages have become visible since the last call. Returns whether one of the calls returned true;
    /// those queues are not notified again after the commit.
    pub(super) fn wake(&mut self, wake: impl Fn(&QueueName) -> bool) -> bool {
        let mut is_awaited = false;
        for (name, row) in &mut self.queues {
            let Some(row) = row.as_mut().filter(|row| row.visible) else { continue };
            row.visible = false;
            let is_woken = wake(name);
            row.arrived &= row.delayed || !is_woken;
            is_awaited |= is_woken;
        }
        is_awaited
    }

    /// Writes the notes about a queue and forgets them, before its row is changed directly.
    pub(super) fn flush(&mut self, name: &QueueName) -> rusqlite::Result<()> {
        if let Some(at) = self.queues.iter().position(|(known, _)| known == name)
            && let (_, Some(row)) = self.queues.swap_remove(at)
        {
            self.write_queue(row)?;
        }
        Ok(())
    }

    /// Notes a message to be inserted together with others.
    pub(super) fn put_off(&mut self, message: Pending) {
        self.pending.push(message);
    }

    /// Inserts the messages that were noted.
    pub(super) fn insert_pending(&mut self) -> rusqlite::Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let pending = std::mem::take(&mut self.pending);
        new_row::insert_pending(&mut self.statements, self.now, &pending)
    }

    /// Inserts messages at once.
    pub(super) fn insert(&mut self, queue: i64, rows: &[(NewRow, &PutMessage)]) -> rusqlite::Result<()> {
        new_row::insert(&mut self.statements, self.now, queue, rows)
    }

    /// Writes all notes; returns `None` when nothing was changed and there is nothing to commit.
    pub(super) fn finish(mut self) -> rusqlite::Result<Option<Finished>> {
        self.insert_pending()?;
        if !self.changed {
            return Ok(None);
        }
        if self.note {
            self.connection
                .prepare_cached("UPDATE jobqueue_store SET now = ?1, sequence = ?2 WHERE id = 1")?
                .execute(params![self.now, self.sequence])?;
        }
        let mut arrived = Vec::new();
        for (queue, row) in std::mem::take(&mut self.queues) {
            let Some(row) = row else { continue };
            self.write_queue(row)?;
            if row.arrived {
                arrived.push(queue);
            }
        }
        Ok(Some(Finished { arrived, ids: self.ids }))
    }

    fn row(&mut self, name: &QueueName) -> rusqlite::Result<Option<&mut QueueRow>> {
        // A transaction changes few queues: a linear search is quicker than hashing.
        let known = self.queues.iter().position(|(known, _)| known == name);
        let at = match known {
            Some(at) => at,
            None => {
                let row = self.find(name)?;
                self.queues.push((name.clone(), row));
                self.queues.len() - 1
            }
        };
        Ok(self.queues.get_mut(at).and_then(|(_, row)| row.as_mut()))
    }

    fn find(&self, name: &QueueName) -> rusqlite::Result<Option<QueueRow>> {
        self.connection
            .prepare_cached("SELECT id, has_groups FROM jobqueue_queue WHERE name = ?1")?
            .query_row([name.as_str()], |row| {
                Ok(QueueRow {
                    id: row.get(0)?,
                    visible: false,
                    arrived: false,
                    delayed: false,
                    has_groups: row.get(1)?,
                })
            })
            .optional()
    }

    fn write_queue(&self, row: QueueRow) -> rusqlite::Result<()> {
        if row.delayed {
            self.connection
                .prepare_cached("UPDATE jobqueue_queue SET delayed = delayed + 1 WHERE id = ?1")?
                .execute([row.id])?;
        }
        Ok(())
    }
}

pub(super) fn refuse(kind: StoreErrorKind, operation: Operation, subject: impl std::fmt::Display) -> Failure {
    Failure::Refused(StoreError::new(kind, operation.as_str(), subject))
}
