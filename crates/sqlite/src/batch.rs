//! One write transaction in which many operations may run: its time, its source of ids, and the queues it changes.
//!
//! The batch notes the queues in which messages arrive, so that the writer can wake their subscriptions.

use std::ops::{Deref, Range};
use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, OptionalExtension, params};

use super::clock::StoreClock;
use super::error::{Applied, Failure};
use super::new_row::{self, Pending};
use super::statements::Statements;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{Operation, PutMessage, QueueName, StoreError, StoreErrorKind};

pub(super) struct Batch<'c> {
    connection: &'c Connection,
    runtime: Runtime,
    /// The newest time that the file has seen.
    seen: i64,
    now: i64,
    /// The reserved numbers that are left, and how many to reserve next.
    ids: Range<i64>,
    block: i64,
    /// The first number in the file that no process has reserved.
    sequence: i64,
    /// True if the row of the store must be written. It is not written in each transaction, since its page would be
    /// synced each time.
    note: bool,
    changed: bool,
    unmet: bool,
    queues: Vec<(QueueName, Option<QueueRow>)>,
    statements: Statements<'c>,
    /// Messages that were put and are not inserted yet.
    pending: Vec<Pending<Arc<PutMessage>>>,
}

#[derive(Clone, Copy, Default)]
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
    pub(super) ids: Range<i64>,
}

/// The number of numbers that the writer reserves at once, so that not every transaction has to write the next free one.
const BLOCK: i64 = 1_024;

/// The maximum age of the latest time in the file, in milliseconds. After the wall clock is set back, a process that
/// starts then may observe up to this much time twice.
const NOTE_EVERY: i64 = 1_000;

impl<'c> Batch<'c> {
    /// Wraps a transaction that holds the write lock. `ids` are the numbers that the writer has reserved; it reserves them
    /// in blocks. Callers that need few numbers pass `None`, and reserve one at a time.
    pub(super) fn begin(
        connection: &'c Connection,
        clock: &StoreClock,
        ids: Option<Range<i64>>,
    ) -> rusqlite::Result<Self> {
        let (seen, sequence): (i64, i64) = connection
            .prepare_cached("SELECT now, sequence FROM jobqueue_store WHERE id = 1")?
            .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let mut batch = Self {
            connection,
            runtime: clock.runtime().clone(),
            seen,
            now: seen,
            block: if ids.is_some() { BLOCK } else { 1 },
            ids: ids.unwrap_or_default(),
            sequence,
            note: false,
            changed: false,
            unmet: false,
            queues: Vec::new(),
            statements: Statements::new(connection),
            pending: Vec::new(),
        };
        batch.look_at(clock)?;
        Ok(batch)
    }

    /// Reads the present time again, for operations that were requested after the transaction began: a lease must not
    /// end before its owner thinks so.
    pub(super) fn look_at(&mut self, clock: &StoreClock) -> rusqlite::Result<()> {
        self.now = clock.now(self.now);
        self.note |= self.now - self.seen >= NOTE_EVERY || clock.is_ahead();
        match clock.take_leap() {
            0 => Ok(()),
            leap => self.move_leases(leap),
        }
    }

    /// Moves the leases that were in force before time leapt ahead: their owners count how long they last.
    fn move_leases(&mut self, leap: i64) -> rusqlite::Result<()> {
        self.changed = true;
        self.note = true;
        for statement in [
            "UPDATE jobqueue_message SET visible_at = visible_at + ?1 WHERE leased = 1 AND visible_at > ?2",
            "UPDATE jobqueue_blob SET lease_until = lease_until + ?1 WHERE lease_until > ?2",
        ] {
            self.connection.execute(statement, params![leap, self.now - leap])?;
        }
        Ok(())
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(super) fn connection(&self) -> &'c Connection {
        self.connection
    }

    pub(super) fn statement(&mut self, sql: &'static str) -> rusqlite::Result<&mut CachedStatement<'c>> {
        self.statements.get(sql)
    }

    pub(super) fn now(&self) -> i64 {
        self.now
    }

    /// Returns a number that no message or tag has had before. Numbers that a process had reserved when it ended are
    /// never used.
    pub(super) fn next(&mut self) -> Applied<i64> {
        self.changed = true;
        if self.ids.is_empty() {
            self.note = true;
            let end = self.sequence.saturating_add(self.block);
            self.ids = self.sequence..end;
            self.sequence = end;
        }
        self.ids.next().ok_or_else(|| {
            let full = StoreError::new(StoreErrorKind::Full, "allocate a number", "");
            full.with_detail("all numbers are used up").into()
        })
    }

    /// Notes that something was written, so that the transaction is committed.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Notes that the operation found nothing, and is applied again if messages arrive in its transaction.
    pub(super) fn note_unmet(&mut self) {
        self.unmet = true;
    }

    pub(super) fn take_unmet(&mut self) -> bool {
        std::mem::take(&mut self.unmet)
    }

    pub(super) fn queue(&mut self, operation: Operation, name: &QueueName) -> Applied<i64> {
        let row = self.row(name)?.map(|row| row.id);
        row.ok_or_else(|| refuse(StoreErrorKind::QueueNotFound, operation, name))
    }

    pub(super) fn has_groups(&mut self, name: &QueueName) -> rusqlite::Result<bool> {
        Ok(self.row(name)?.is_some_and(|row| row.has_groups))
    }

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

    pub(super) fn put_off(&mut self, message: Pending<Arc<PutMessage>>) {
        self.pending.push(message);
    }

    pub(super) fn insert_pending(&mut self) -> rusqlite::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.insert(&pending)
    }

    pub(super) fn insert<M: Deref<Target = PutMessage>>(
        &mut self,
        messages: &[Pending<M>],
    ) -> rusqlite::Result<()> {
        new_row::insert(&mut self.statements, messages)
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
        let at = match self.queues.iter().position(|(known, _)| known == name) {
            Some(at) => at,
            None => {
                let row = self
                    .connection
                    .prepare_cached("SELECT id, has_groups FROM jobqueue_queue WHERE name = ?1")?
                    .query_row([name.as_str()], |row| {
                        let (id, has_groups) = (row.get(0)?, row.get(1)?);
                        Ok(QueueRow { id, has_groups, ..QueueRow::default() })
                    })
                    .optional()?;
                self.queues.push((name.clone(), row));
                self.queues.len() - 1
            }
        };
        Ok(self.queues.get_mut(at).and_then(|(_, row)| row.as_mut()))
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::MIGRATIONS;

    #[test]
    fn leases_last_as_long_when_time_leaps() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&MIGRATIONS.concat()).unwrap();
        let hour = 3_600_000;
        let wall = jobqueue_storage::clock::ManualClock::new();
        let clock = StoreClock::after_a_leap(Runtime::new().with_clock(std::sync::Arc::new(wall)), hour);
        let before = clock.now(0) - hour;
        let rows = [(1, before + 30_000), (1, before - 1), (0, before + 30_000), (2, before + 30_000)];
        for (leased, visible_at) in rows {
            let insert = "INSERT INTO jobqueue_message
                (queue, visible_at, inserted_at, dequeue_count, leased, waiting, receipt, text)
                VALUES (1, ?1, 0, 1, ?2, 0, x'', '')";
            connection.execute(insert, [visible_at, leased]).unwrap();
        }
        assert!(Batch::begin(&connection, &clock, None).unwrap().finish().unwrap().is_some());
        let mut moved = connection.prepare("SELECT visible_at FROM jobqueue_message ORDER BY id").unwrap();
        let moved = moved.query_map([], |row| row.get(0)).unwrap().collect::<Result<Vec<i64>, _>>();
        let expected = [rows[0].1 + hour, rows[1].1, rows[2].1, rows[3].1];
        assert_eq!(moved.unwrap(), expected, "delays follow the wall clock");
        assert!(Batch::begin(&connection, &clock, None).unwrap().finish().unwrap().is_none());
    }

    #[test]
    fn no_number_is_drawn_twice_and_the_last_one_is_the_last() {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(&MIGRATIONS.concat()).unwrap();
        let clock = StoreClock::new(Runtime::new());
        let draw = |ids: Option<Range<i64>>| {
            let mut batch = Batch::begin(&connection, &clock, ids).unwrap();
            let drawn = batch.next().ok();
            (drawn, batch.finish().unwrap().unwrap().ids)
        };
        let (first, left) = draw(Some(0..0));
        let (second, left) = draw(Some(left));
        let (alone, none) = draw(None);
        assert_eq!((second, left.start), (first.map(|first| first + 1), first.unwrap() + 2));
        assert_eq!((alone, none.is_empty()), (Some(left.end), true));
        connection.execute("UPDATE jobqueue_store SET sequence = ?1", [i64::MAX - 1]).unwrap();
        let (last, left) = draw(Some(0..0));
        assert_eq!((last, draw(Some(left)).0), (Some(i64::MAX - 1), None));
    }
}
