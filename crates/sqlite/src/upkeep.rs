//! The writer's chores between transactions: checkpoints, and the removal of expired messages.
//!
//! Checkpoints run after the answers, so that only later operations wait for them, and on the writer's own thread, so
//! that a log under constant load can be finished and restarted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::Connection;

use super::checkpoint::{Progress, checkpoint, progress};
use super::clock::StoreClock;
use super::error::from_sql;
use super::health::Health;
use super::purge;
use super::space::Space;

/// The number of pages from which to warn that the log cannot be cut: 64 MiB.
const WARN_PAGES: u32 = 8_000;

/// The time without work after which the log is emptied.
const IDLE: Duration = Duration::from_secs(2);

/// The period of the search for expired messages.
const PURGE_EVERY: Duration = Duration::from_secs(1);

/// The period of the search while no operation is requested.
const SLOW: Duration = Duration::from_secs(60);

/// The state of the chores.
pub(super) struct Upkeep {
    /// The number of pages in the log after the last commit.
    pages: u32,
    /// The number of pages at which to checkpoint next.
    next_checkpoint: u32,
    next_warning: u32,
    last_purge: Instant,
    /// True if there is something to do as soon as no operation is requested.
    pending: bool,
    health: Arc<Health>,
    space: Space,
}

impl Upkeep {
    /// Takes over the checkpointing of `connection`.
    pub(super) fn new(connection: &Connection, health: Arc<Health>, space: Space) -> rusqlite::Result<Self> {
        connection.pragma_update(None, "wal_autocheckpoint", 0)?;
        Ok(Self {
            pages: 0,
            next_checkpoint: space.checkpoint_pages(),
            next_warning: WARN_PAGES,
            last_purge: Instant::now(),
            pending: true,
            health,
            space,
        })
    }

    /// Sets the limit of the file's size again before each transaction where room is short.
    pub(super) fn before_transaction(&mut self, connection: &Connection) {
        let looked = self.space.look_if_short(connection);
        self.note_space(looked);
    }

    fn note_space(&self, looked: rusqlite::Result<()>) {
        if let Err(error) = looked {
            self.health.note(&from_sql(error));
        }
    }

    /// Returns the time that the writer may sleep when no operation is requested.
    pub(super) fn pause(&self) -> Duration {
        if self.pending { IDLE } else { SLOW }
    }

    /// Runs the chores: after each transaction, and when no operation was requested for [`pause`](Self::pause).
    pub(super) fn run(&mut self, idle: bool, connection: &Connection, clock: &StoreClock) {
        if idle {
            self.when_idle(connection, clock);
        } else {
            self.after_commit(connection, clock);
        }
    }

    fn after_commit(&mut self, connection: &Connection, clock: &StoreClock) {
        self.pending = true;
        self.pages = self.pages_to_copy(connection);
        if self.pages >= self.next_checkpoint {
            self.checkpoint(connection);
        }
        if self.last_purge.elapsed() >= PURGE_EVERY {
            self.purge(connection, clock);
        }
    }

    /// Returns the number of pages in the log, or zero if the file has all of them.
    ///
    /// A hook on commits would tell the first number too. But each range of versions of `rusqlite` has another one, and
    /// the oldest that this crate accepts has none.
    fn pages_to_copy(&self, connection: &Connection) -> u32 {
        let counted = connection
            .prepare_cached("PRAGMA wal_checkpoint(NOOP)")
            .and_then(|mut statement| statement.query_row([], progress));
        match counted {
            Ok((_, pages, done)) if done < pages => pages,
            Ok(_) => 0,
            // The next checkpoint meets the same error and decides what it means.
            Err(_) => self.next_checkpoint,
        }
    }

    fn when_idle(&mut self, connection: &Connection, clock: &StoreClock) {
        self.pending = self.purge(connection, clock);
        if self.pages > 0 && self.try_checkpoint(connection, "TRUNCATE").is_some_and(|(busy, _, _)| !busy) {
            self.cut(connection);
        }
    }

    /// Runs the last chores before the file is closed.
    pub(super) fn at_end(&mut self, connection: &Connection) {
        self.try_checkpoint(connection, "PASSIVE");
    }

    /// Removes some expired rows; returns true if there is more to do.
    fn purge(&mut self, connection: &Connection, clock: &StoreClock) -> bool {
        self.last_purge = Instant::now();
        purge::step(connection, clock).unwrap_or_else(|cause| {
            let error = cause.error("remove expired messages", "");
            tracing::debug!(%error, "expired messages were not removed; the next round will try again");
            self.health.note(&cause);
            true
        })
    }

    fn checkpoint(&mut self, connection: &Connection) {
        let Some((_, pages, done)) = self.try_checkpoint(connection, "PASSIVE") else { return };
        if done >= pages {
            return self.cut(connection);
        }
        // A reader still uses an old state. Trying again at every commit would be useless.
        self.next_checkpoint = pages.saturating_add(self.space.checkpoint_pages());
        if pages >= self.next_warning {
            self.next_warning = pages.saturating_mul(2);
            tracing::warn!(
                pages,
                "the write-ahead log grows because a reader holds an old snapshot; end long read transactions"
            );
        }
    }

    /// Tries a checkpoint. The log keeps the commits, so nothing is lost when it fails. But the effect of a failed sync
    /// is unknown, and so the store stops.
    fn try_checkpoint(&self, connection: &Connection, mode: &str) -> Option<Progress> {
        checkpoint(connection, mode)
            .inspect_err(|cause| {
                tracing::warn!(error = %cause.error("copy the log into the file", ""), "a checkpoint failed");
                self.health.note(cause);
            })
            .ok()
    }

    fn cut(&mut self, connection: &Connection) {
        self.pages = 0;
        let looked = self.space.look(connection);
        self.note_space(looked);
        self.next_checkpoint = self.space.checkpoint_pages();
        self.next_warning = WARN_PAGES;
    }
}
