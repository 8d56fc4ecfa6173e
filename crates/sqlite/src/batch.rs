//! A write transaction in which many operations may run: its time, its source of ids, and the queues it
//! changes.
//!
//! The batch records the queues in which messages arrive, so that the writer can wake their subscriptions.

use std::ops::Deref;
use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, params};

use super::clock::{LEASED_TIME, StoreClock};
use super::error::{Applied, Cause, Failure, from_sql};
use super::known::{Known, QueueRow};
use super::new_row::{self, Pending};
use super::space::Reserve;
use super::statements::Statements;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{Operation, PutMessage, QueueName, StoreError, StoreErrorKind};

pub(super) struct Batch<'c> {
    connection: &'c Connection,
    runtime: Runtime,
    now: i64,
    known: Known,
    /// True if the row of the store must be written. It is not written in each transaction, because its page
    /// would be synced each time.
    note: bool,
    changed: bool,
    reserve: Reserve,
    /// True if the file is full: operations then avoid taking pages where they can.
    saves_pages: bool,
    unmet: bool,
    /// The sum of the clock's leaps, in milliseconds, for which leases were moved.
    moved: i64,
    /// The milliseconds by which leases must still be moved. Until then other processes must not see the
    /// present time.
    unmoved: i64,
    statements: Statements<'c>,
    pending: Vec<Pending<Arc<PutMessage>>>,
}

/// The results of a transaction, for use after its commit.
pub(super) struct Finished {
    /// True if something was changed and must be committed.
    pub(super) changed: bool,
    /// The part of the reserved pages that must stay free.
    pub(super) reserve: Reserve,
    /// The queues whose subscriptions must be notified.
    pub(super) arrived: Vec<QueueName>,
    /// The connection's knowledge of the file after the commit.
    pub(super) known: Known,
    /// The sum of the leaps for which leases were moved; the clock records it after the commit.
    pub(super) moved: i64,
}

/// The maximum lag of the time stored in the file, in milliseconds. After the wall clock is set back, a
/// process that starts then may observe up to this much time twice.
const MAX_TIME_LAG: i64 = 1_000;

/// The maximum number of queues that are remembered beyond a transaction.
const MAX_KNOWN_QUEUES: usize = 64;

impl<'c> Batch<'c> {
    /// Wraps a transaction that holds the write lock. `known` is the connection's knowledge after its last
    /// transaction, or empty.
    pub(super) fn begin(connection: &'c Connection, clock: &StoreClock, known: Known) -> Result<Self, Cause> {
        let mut batch = Self::new(connection, clock, known)?;
        batch.refresh_time(clock).map_err(from_sql)?;
        Ok(batch)
    }

    /// Wraps a transaction of the application, which may be rolled back at any time. If time has leapt ahead,
    /// the leases are moved by the store's next transaction, not by this one.
    pub(super) fn within(connection: &'c Connection, clock: &StoreClock) -> Result<Self, Cause> {
        let mut batch = Self::new(connection, clock, Known::default())?;
        let leap = batch.read_time(clock);
        batch.unmoved = if batch.has_moved(leap) { 0 } else { leap };
        Ok(batch)
    }

    fn new(connection: &'c Connection, clock: &StoreClock, known: Known) -> Result<Self, Cause> {
        let known = known.refreshed(connection)?;
        Ok(Self {
            connection,
            runtime: clock.runtime().clone(),
            now: known.seen,
            known,
            note: false,
            changed: false,
            reserve: Reserve::Nothing,
            saves_pages: false,
            unmet: false,
            moved: 0,
            unmoved: 0,
            statements: Statements::new(connection),
            pending: Vec::new(),
        })
    }

    /// Reads the present time again, for operations that were requested after the transaction began.
    /// Otherwise a lease could end before its owner expects it.
    pub(super) fn refresh_time(&mut self, clock: &StoreClock) -> rusqlite::Result<()> {
        match self.read_time(clock) {
            0 => Ok(()),
            leap if self.has_moved(leap) => {
                self.moved += leap;
                Ok(())
            }
            leap => self.move_leases(leap),
        }
    }

    /// Returns whether another process has moved the leases, which the file shows by a time after the leap.
    /// The clocks of two processes may differ by seconds, so the limit is the middle of the leap, which is
    /// longer.
    fn has_moved(&self, leap: i64) -> bool {
        self.known.seen > self.now - leap / 2
    }

    /// Returns the milliseconds by which time has leapt ahead since leases were moved, by this transaction or
    /// by any that was committed.
    fn read_time(&mut self, clock: &StoreClock) -> i64 {
        let (now, leap) = clock.now_and_leap(self.now, &mut self.moved);
        self.now = now;
        self.note |= now - self.known.seen >= MAX_TIME_LAG || clock.is_ahead();
        leap
    }

    /// Moves the leases that were in force before time leapt ahead, since their owners count durations. This
    /// reads all leases, all blobs and the index of times. It takes some seconds for many millions of rows,
    /// while other operations wait; leaps are too rare for another index.
    fn move_leases(&mut self, leap: i64) -> rusqlite::Result<()> {
        self.changed = true;
        self.note = true;
        self.moved += leap;
        for statement in [
            "UPDATE jobqueue_lease SET until = until + ?1 WHERE until > ?2 AND until < ?3",
            "UPDATE jobqueue_message SET visible_at = visible_at + ?1
                WHERE waiting = 0 AND visible_at > ?2 AND visible_at < ?3 AND leased = 1",
            "UPDATE jobqueue_blob SET lease_until = lease_until + ?1 WHERE lease_until > ?2 AND lease_until < ?3",
        ] {
            self.connection.execute(statement, params![leap, self.now - leap, LEASED_TIME])?;
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

    pub(super) fn statements(&mut self) -> &mut Statements<'c> {
        &mut self.statements
    }

    pub(super) fn now(&self) -> i64 {
        self.now
    }

    /// Returns the time against which leases are checked: the time before a leap until the leases are moved.
    pub(super) fn lease_time(&self) -> i64 {
        self.now - self.unmoved
    }

    /// Returns a number greater than every message number or tag before, of any process. Reserved numbers
    /// that are not used are lost.
    pub(super) fn next(&mut self) -> Applied<i64> {
        self.changed = true;
        self.note |= self.known.reserve();
        self.known.numbers.next().ok_or_else(|| {
            let full = StoreError::new(StoreErrorKind::Full, "allocate a number", "");
            full.with_detail("all numbers are used up").into()
        })
    }

    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Records that the operation may take pages, but must leave this part of the reserve.
    pub(super) fn leave(&mut self, reserve: Reserve) {
        self.reserve = self.reserve.max(reserve);
    }

    /// Makes operations do without new pages where they can, after an attempt for which the file was full.
    pub(super) fn save_pages(&mut self) {
        self.saves_pages = true;
    }

    pub(super) fn saves_pages(&self) -> bool {
        self.saves_pages
    }

    /// Records that the operation found nothing; it is applied again if messages arrive in its transaction.
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

    /// Returns the lowest row id from which messages are received by their numbers.
    pub(super) fn head(&mut self, name: &QueueName) -> rusqlite::Result<i64> {
        Ok(self.row(name)?.map_or(0, |row| row.head))
    }

    pub(super) fn set_head(&mut self, name: &QueueName, head: i64) -> rusqlite::Result<()> {
        if let Some(row) = self.row(name)? {
            row.head = head;
        }
        Ok(())
    }

    /// Returns a time before which no lease ends.
    pub(super) fn due(&mut self, name: &QueueName) -> rusqlite::Result<i64> {
        Ok(self.row(name)?.map_or(i64::MAX, |row| row.due))
    }

    pub(super) fn set_due(&mut self, name: &QueueName, due: i64) -> rusqlite::Result<()> {
        if let Some(row) = self.row(name)? {
            row.due = due;
        }
        Ok(())
    }

    /// Takes the leases known to have ended, and returns them with a time before which no other lease ends.
    pub(super) fn take_ended(&mut self, name: &QueueName) -> rusqlite::Result<(Vec<i64>, i64)> {
        let ended = self.row(name)?.map(|row| (std::mem::take(&mut row.ended), row.others_due));
        Ok(ended.unwrap_or((Vec::new(), i64::MAX)))
    }

    pub(super) fn set_ended(
        &mut self,
        name: &QueueName,
        leases: Vec<i64>,
        others_due: i64,
    ) -> rusqlite::Result<()> {
        if let Some(row) = self.row(name)? {
            (row.ended, row.others_due) = (leases, others_due);
        }
        Ok(())
    }

    /// Records that the ended lease `id` is gone, and with it the leases that ended before it.
    pub(super) fn end_lease(&mut self, name: &QueueName, id: i64) -> rusqlite::Result<()> {
        if let Some(row) = self.row(name)? {
            while row.ended.pop().is_some_and(|ended| ended != id) {}
        }
        Ok(())
    }

    pub(super) fn note_lease(&mut self, name: &QueueName, until: i64) -> rusqlite::Result<()> {
        self.changed = true;
        if let Some(row) = self.row(name)? {
            row.due = row.due.min(until);
            row.others_due = row.others_due.min(until);
        }
        Ok(())
    }

    /// Records that messages arrived, the last of which becomes visible at `visible_at`.
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
        self.known.queues.iter().any(|(_, row)| row.as_ref().is_some_and(|row| row.visible))
    }

    /// Calls `wake` for each queue in which messages have become visible since the last call. Returns whether
    /// any call returned true. The commit does not notify such a queue again, unless delayed messages arrived
    /// too.
    pub(super) fn wake(&mut self, wake: impl Fn(&QueueName) -> bool) -> bool {
        let mut is_awaited = false;
        for (name, row) in &mut self.known.queues {
            let Some(row) = row.as_mut().filter(|row| row.visible) else { continue };
            row.visible = false;
            let is_woken = wake(name);
            row.arrived &= row.delayed || !is_woken;
            is_awaited |= is_woken;
        }
        is_awaited
    }

    /// Writes the recorded state of a queue and forgets it, before its row is changed directly.
    pub(super) fn flush(&mut self, name: &QueueName) -> rusqlite::Result<()> {
        if let Some(at) = self.known.queues.iter().position(|(known, _)| known == name)
            && let (_, Some(mut row)) = self.known.queues.swap_remove(at)
        {
            row.write(self.connection, self.now)?;
        }
        Ok(())
    }

    pub(super) fn defer_insert(&mut self, message: Pending<Arc<PutMessage>>) {
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

    /// Writes all recorded state if anything was changed.
    pub(super) fn finish(mut self) -> rusqlite::Result<Finished> {
        self.insert_pending()?;
        let mut arrived = Vec::new();
        if self.changed && self.note {
            self.known.seen = if self.unmoved == 0 { self.now } else { self.known.seen };
            self.connection
                .prepare_cached("UPDATE jobqueue_store SET now = ?1, sequence = ?2 WHERE id = 1")?
                .execute(params![self.known.seen, self.known.sequence])?;
        }
        for (queue, row) in &mut self.known.queues {
            let Some(row) = row.as_mut().filter(|_| self.changed) else { continue };
            row.write(self.connection, self.now)?;
            row.visible = false;
            if std::mem::take(&mut row.arrived) {
                arrived.push(queue.clone());
            }
        }
        if self.known.queues.len() > MAX_KNOWN_QUEUES {
            self.known.queues.clear();
        }
        Ok(Finished {
            changed: self.changed,
            reserve: self.reserve,
            arrived,
            known: self.known,
            moved: self.moved,
        })
    }

    fn row(&mut self, name: &QueueName) -> rusqlite::Result<Option<&mut QueueRow>> {
        let queues = &mut self.known.queues;
        // A process uses few queues, so a linear search is faster than hashing.
        let at = match queues.iter().position(|(known, _)| known == name) {
            Some(at) => at,
            None => {
                queues.push((name.clone(), None));
                queues.len() - 1
            }
        };
        let (_, row) = &mut queues[at];
        if row.as_ref().is_none_or(|row| row.is_stale) {
            *row = QueueRow::read(self.connection, name, row.take())?;
        }
        Ok(row.as_mut())
    }
}

pub(super) fn refuse(kind: StoreErrorKind, operation: Operation, subject: impl std::fmt::Display) -> Failure {
    Failure::Refused(StoreError::new(kind, operation.as_str(), subject))
}

#[cfg(test)]
mod tests;
