//! The thread that notices commits of other processes, and of this process's other connections to the file.
//!
//! `PRAGMA data_version` shows without reading a table whether another connection has committed. The file
//! system reports when to ask, if it can ([`Changes`]); otherwise the watcher asks at a short period.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::clock::StoreClock;
use super::error::from_sql;
use super::health::Health;
use super::notifiers::{Notifiers, QueueState};
use super::open::keep_log_on_close;
use super::open::platform::Changes;
use super::process_guard::ProcessGuard;
use jobqueue_storage::QueueName;

/// Selects the count of delayed arrivals, and whether a message is visible: in the index of times, by a lease
/// that has ended, or by its number. Of the messages received by number the last is checked first, because
/// leased messages come before it.
pub(super) const QUEUE_STATE: &str = "SELECT delayed,
        EXISTS (SELECT 1 FROM jobqueue_message WHERE queue = q.id AND waiting = 0 AND visible_at <= ?2)
        OR due <= ?2 AND EXISTS (SELECT 1 FROM jobqueue_lease
            WHERE id >= q.id << 42 AND id < q.id + 1 << 42 AND until <= ?2)
        OR (SELECT 1 FROM jobqueue_message m
            WHERE id >= max(q.head, (q.id << 42) + (1 << 41)) AND id < q.id + 1 << 42 AND visible_at IS NULL
                AND NOT EXISTS (SELECT 1 FROM jobqueue_lease l WHERE l.id = m.id)
            ORDER BY id DESC LIMIT 1) IS NOT NULL
    FROM jobqueue_queue q WHERE name = ?1";

pub(super) struct Watcher {
    pub(super) connection: Connection,
    pub(super) notifiers: Arc<Notifiers>,
    pub(super) clock: Arc<StoreClock>,
    pub(super) health: Arc<Health>,
    pub(super) changes: Changes,
    /// Released after the connection is closed, because it is declared after the connection.
    pub(super) _guard: Arc<ProcessGuard>,
}

impl Watcher {
    pub(super) fn run(mut self) {
        let mut version = 0;
        while self.health.poisoned().is_ok() {
            if let Err(error) = self.check(&mut version) {
                self.health.note(&from_sql(error));
            }
            if self.changes.wait() {
                break;
            }
        }
        if self.health.poisoned().is_err() {
            keep_log_on_close(&self.connection, true);
        }
    }

    fn check(&self, version: &mut i64) -> rusqlite::Result<()> {
        let newest: i64 =
            self.connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))?;
        if newest == *version {
            return Ok(());
        }
        let mut seen = self.connection.prepare_cached("SELECT now FROM jobqueue_store WHERE id = 1")?;
        let now = self.clock.now(seen.query_row([], |row| row.get(0))?);
        for queue in self.notifiers.queues() {
            if let Some(seen) = self.seen(&queue, now)? {
                self.notifiers.notify_of_others(&queue, &seen);
            }
        }
        *version = newest;
        Ok(())
    }

    fn seen(&self, queue: &QueueName, now: i64) -> rusqlite::Result<Option<QueueState>> {
        self.connection
            .prepare_cached(QUEUE_STATE)?
            .query_row(params![queue.as_str(), now], |row| {
                Ok(QueueState { delayed: row.get(0)?, visible: row.get(1)? })
            })
            .optional()
    }
}
