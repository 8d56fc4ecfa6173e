//! The thread that notices commits of other processes, and of this process's other connections to the file.
//!
//! `PRAGMA data_version` says without reading a table whether another connection has committed. The file system says
//! when to ask, where it can ([`Changes`]); otherwise a short period does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::{Connection, OptionalExtension, params};

use super::clock::StoreClock;
use super::error::from_sql;
use super::health::Health;
use super::notifiers::{Notifiers, Seen};
use super::open::leave_log;
use super::open::platform::Changes;
use super::process_guard::ProcessGuard;
use jobqueue_storage::QueueName;

/// The watcher's end of a store.
pub(super) struct Watcher {
    pub(super) connection: Connection,
    pub(super) notifiers: Arc<Notifiers>,
    pub(super) clock: Arc<StoreClock>,
    pub(super) health: Arc<Health>,
    pub(super) changes: Changes,
    /// The flag that is set when the store is closed.
    pub(super) stop: Arc<AtomicBool>,
    /// Released after the connection is closed, which is declared before.
    pub(super) _guard: Arc<ProcessGuard>,
}

impl Watcher {
    /// Watches until the store is closed or damaged.
    pub(super) fn run(mut self) {
        let mut version = 0;
        while !self.stop.load(Ordering::Relaxed) {
            if let Err(error) = self.look(&mut version) {
                let cause = from_sql(error);
                self.health.note(&cause);
                if self.health.poisoned().is_err() {
                    break;
                }
            }
            self.changes.wait();
        }
        if self.health.poisoned().is_err() {
            leave_log(&self.connection);
        }
    }

    fn look(&self, version: &mut i64) -> rusqlite::Result<()> {
        let newest: i64 =
            self.connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if newest == *version {
            return Ok(());
        }
        let now = self.now()?;
        for queue in self.notifiers.queues() {
            if let Some(seen) = self.seen(&queue, now)? {
                self.notifiers.notify_of_others(&queue, &seen);
            }
        }
        *version = newest;
        Ok(())
    }

    fn now(&self) -> rusqlite::Result<i64> {
        let mut newest = self.connection.prepare_cached("SELECT now FROM jobqueue_store WHERE id = 1")?;
        Ok(self.clock.now(newest.query_row([], |row| row.get(0))?))
    }

    fn seen(&self, queue: &QueueName, now: i64) -> rusqlite::Result<Option<Seen>> {
        self.connection
            .prepare_cached(
                "SELECT delayed, EXISTS
                     (SELECT 1 FROM jobqueue_message WHERE queue = q.id AND waiting = 0 AND visible_at <= ?2)
                 FROM jobqueue_queue q WHERE name = ?1",
            )?
            .query_row(params![queue.as_str(), now], |row| {
                Ok(Seen { delayed: row.get(0)?, visible: row.get(1)? })
            })
            .optional()
    }
}
