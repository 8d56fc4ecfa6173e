//! The writer's maintenance between transactions: checkpoints, and the removal of expired messages.
//!
//! Checkpoints run after the answers, so that only later operations wait for them, and on the writer's
//! thread, so that a log under constant load can be finished and restarted. If other processes write too, one
//! of them may always be in a transaction when a checkpoint ends, and then SQLite appends to the log. So a
//! log that has grown long is restarted while this process holds the write lock.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::checkpoint::{Progress, checkpoint, progress};
use super::clock::StoreClock;
use super::error::from_sql;
use super::health::Health;
use super::known::Known;
use super::notifiers::Notifiers;
use super::purge;
use super::space::Space;
use jobqueue_storage::log::{debug, warn};

/// The number of pages from which to warn that the log cannot be cut: 64 MiB.
const WARN_PAGES: u32 = 8_000;

/// The number of attempts to get the locks that restarting the log needs, and the pause between two: a
/// quarter of a second in all. The pauses are shorter than the pauses of writers, so that the lock is taken
/// between two of their transactions.
const RESTART_TRIES: i32 = 1_000;
const RESTART_PAUSE: Duration = Duration::from_micros(250);

/// The time without work after which the log is emptied.
const EMPTY_LOG_AFTER: Duration = Duration::from_secs(2);

/// The period of the search for expired messages.
const PURGE_EVERY: Duration = Duration::from_secs(1);

/// While more rows can be removed, the time between two removals, in multiples of the time that the last one
/// took: a tenth of the writer's time goes to removals.
const PURGE_SHARE: u32 = 9;

/// The pause after a checkpoint for a full disk that could not copy the whole log.
const RESCUE_PAUSE: Duration = Duration::from_secs(1);

/// The period of the search while no operation is requested.
const QUIET_PURGE_PERIOD: Duration = Duration::from_secs(60);

pub(super) struct Upkeep {
    /// The number of pages in the log after the last transaction.
    logged: u32,
    /// The number of uncopied pages in the log at which to checkpoint next.
    next_checkpoint: u32,
    next_warning: u32,
    next_purge: Instant,
    next_rescue: Instant,
    /// True if the last removal has left rows to remove.
    has_more: bool,
    /// True if there is maintenance to do as soon as no operation is requested.
    pending: bool,
    health: Arc<Health>,
    notifiers: Arc<Notifiers>,
    pub(super) space: Space,
}

impl Upkeep {
    /// Takes over the checkpointing of `connection`.
    pub(super) fn new(
        connection: &Connection,
        health: Arc<Health>,
        notifiers: Arc<Notifiers>,
        space: Space,
    ) -> rusqlite::Result<Self> {
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        // The log may have grown long because of a long reader; the process that restarts it cuts off the
        // rest.
        connection.pragma_update(None, "journal_size_limit", space.log_bytes())?;
        Ok(Self {
            logged: 0,
            next_checkpoint: space.checkpoint_pages(),
            next_warning: WARN_PAGES,
            next_purge: Instant::now() + PURGE_EVERY,
            next_rescue: Instant::now(),
            has_more: false,
            pending: true,
            health,
            notifiers,
            space,
        })
    }

    /// If room is short, sets the limit of the file's size again, because other programs also fill and empty
    /// the volume.
    pub(super) fn before_transaction(&mut self, connection: &Connection) {
        if !self.space.has_plenty() {
            self.measure_space(connection);
        }
    }

    fn measure_space(&mut self, connection: &Connection) {
        if let Err(error) = self.space.measure(connection) {
            self.health.note(&from_sql(error));
        }
    }

    /// Returns the time that the writer may sleep if no operation is requested.
    pub(super) fn pause(&self) -> Duration {
        match (self.has_more && self.health.poisoned().is_ok(), self.pending) {
            (true, _) => self.next_purge.saturating_duration_since(Instant::now()),
            (false, true) => EMPTY_LOG_AFTER,
            (false, false) => QUIET_PURGE_PERIOD,
        }
    }

    /// Runs the maintenance: after each transaction, and when no operation was requested for
    /// [`pause`](Self::pause).
    pub(super) fn run(
        &mut self,
        idle: bool,
        connection: &mut Connection,
        clock: &StoreClock,
        known: &mut Known,
    ) {
        if idle && !self.has_more {
            self.pending = self.purge(connection, clock, known);
            if self.logged > 0 {
                self.empty_log(connection);
            }
            return;
        }
        self.pending = true;
        let uncopied = self.count_uncopied(connection);
        if uncopied >= self.next_checkpoint {
            self.checkpoint(connection, uncopied);
        }
        if Instant::now() >= self.next_purge {
            self.purge(connection, clock, known);
        }
    }

    /// Empties the log. If room is short, the log's file keeps its length: other programs could take the
    /// space returned to the volume, and then no commit would have room.
    fn empty_log(&mut self, connection: &Connection) {
        self.measure_space(connection);
        let mode = if self.space.has_plenty() { "TRUNCATE" } else { "RESTART" };
        if self.try_checkpoint(connection, mode).is_some_and(|log| !log.busy) {
            self.logged = 0;
            self.note_copied_log(connection);
        }
    }

    /// Lets the log start over after a commit that found no room, so that the next commits can reuse its
    /// length.
    pub(super) fn make_room(&mut self, connection: &Connection) {
        let now = Instant::now();
        if now < self.next_rescue {
            return;
        }
        match self.try_checkpoint(connection, "PASSIVE") {
            Some(log) if log.copied == log.pages => self.note_copied_log(connection),
            _ => self.next_rescue = now + RESCUE_PAUSE,
        }
    }

    /// Returns the number of uncopied pages in the log.
    ///
    /// A commit hook would also report the length of the log. But its interface differs between the accepted
    /// versions of `rusqlite`, and the oldest has none.
    fn count_uncopied(&mut self, connection: &Connection) -> u32 {
        let counted = connection
            .prepare_cached("PRAGMA wal_checkpoint(NOOP)")
            .and_then(|mut statement| statement.query_row([], progress));
        // The next checkpoint meets the same error and decides what it means.
        let Ok(log) = counted else { return self.next_checkpoint };
        self.logged = log.pages;
        log.pages.saturating_sub(log.copied)
    }

    pub(super) fn before_close(&mut self, connection: &Connection) {
        self.try_checkpoint(connection, "PASSIVE");
    }

    /// Removes some expired rows; returns true if there is more to do.
    fn purge(&mut self, connection: &Connection, clock: &StoreClock, known: &mut Known) -> bool {
        let begun = Instant::now();
        let removed = purge::step(connection, clock, known);
        self.has_more = removed.as_ref().is_ok_and(|removed| removed.has_more);
        self.next_purge =
            Instant::now() + if self.has_more { begun.elapsed() * PURGE_SHARE } else { PURGE_EVERY };
        match removed {
            Ok(removed) => {
                self.notifiers.notify(&removed.arrived);
                removed.has_more
            }
            Err(cause) => {
                let error = cause.error("remove expired messages", "");
                debug!(%error, "expired messages were not removed; the next round will try again");
                self.health.note(&cause);
                true
            }
        }
    }

    fn checkpoint(&mut self, connection: &mut Connection, uncopied: u32) {
        let due = self.space.checkpoint_pages();
        // If it fails or stays incomplete, trying again at every commit would be useless.
        self.next_checkpoint = uncopied.saturating_add(due);
        let Some(Progress { pages, copied, .. }) = self.try_checkpoint(connection, "PASSIVE") else { return };
        let left = pages.saturating_sub(copied);
        // Readers of a recent snapshot are soon done.
        let is_done = if pages >= due * 2 && left < due { self.restart(connection) } else { left == 0 };
        if is_done {
            return self.note_copied_log(connection);
        }
        // A reader still uses an old snapshot.
        self.next_checkpoint = left.saturating_add(due);
        if pages >= self.next_warning {
            self.next_warning = pages.saturating_mul(2);
            warn!(
                pages,
                "the write-ahead log grows because a reader holds an old snapshot; end long read transactions"
            );
        }
    }

    /// Makes the next transaction of any process write to the beginning of the log. Waits briefly for
    /// transactions of other connections. Returns whether it succeeded.
    fn restart(&self, connection: &mut Connection) -> bool {
        let wait = |tried: i32| {
            std::thread::sleep(RESTART_PAUSE);
            tried < RESTART_TRIES
        };
        let is_patient = connection.busy_handler(Some(wait as fn(i32) -> bool)).is_ok();
        let restarted = is_patient.then(|| self.try_checkpoint(connection, "RESTART")).flatten();
        // The writer waits for the write lock itself.
        let _ = connection.busy_timeout(Duration::ZERO);
        restarted.is_some_and(|log| !log.busy)
    }

    /// Tries a checkpoint. The log keeps the commits, so nothing is lost if it fails. But the effect of a
    /// failed sync is unknown, so the store then stops.
    fn try_checkpoint(&self, connection: &Connection, mode: &str) -> Option<Progress> {
        checkpoint(connection, mode)
            .inspect_err(|cause| {
                warn!(error = %cause.error("copy the log into the file", ""), "a checkpoint failed");
                self.health.note(cause);
            })
            .ok()
    }

    fn note_copied_log(&mut self, connection: &Connection) {
        self.measure_space(connection);
        self.next_checkpoint = self.space.checkpoint_pages();
        self.next_warning = WARN_PAGES;
    }
}

#[cfg(test)]
mod tests;
