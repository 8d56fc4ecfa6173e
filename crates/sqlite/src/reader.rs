//! A thread that reads on its own connection, so that reads never wait for writes.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::clock::StoreClock;
use super::error::{Applied, Cause, Failure, from_sql};
use super::health::Health;
use super::open::keep_log_on_close;
use super::process_guard::ProcessGuard;
use super::schema;
use jobqueue_storage::{Operation, StoreError};

pub(super) type ReadRequest = Box<dyn FnOnce(&mut Reader) + Send>;

pub(super) struct Reader {
    pub(super) connection: Connection,
    pub(super) clock: Arc<StoreClock>,
    pub(super) health: Arc<Health>,
    /// Released after the connection is closed, because it is declared after the connection.
    pub(super) _guard: Arc<ProcessGuard>,
}

/// A snapshot of the file, and the time at which it is read.
pub(super) struct View<'c> {
    pub(super) connection: Transaction<'c>,
    pub(super) now: i64,
}

impl Reader {
    pub(super) fn run(mut self, requests: &Receiver<ReadRequest>) {
        for request in requests {
            request(&mut self);
        }
        if self.health.poisoned().is_err() {
            keep_log_on_close(&self.connection, true);
        }
    }

    pub(super) fn answer<S: fmt::Display, T>(
        &mut self,
        operation: Operation,
        subject: &S,
        read: impl FnOnce(&View<'_>, &S) -> Applied<T>,
    ) -> Result<T, StoreError> {
        let health = Arc::clone(&self.health);
        let stopped = |cause: Cause| {
            health.note(&cause);
            cause.error(operation.as_str(), subject)
        };
        health.poisoned().map_err(stopped)?;
        let view = self.view().map_err(stopped)?;
        read(&view, subject).map_err(|failure| match failure {
            Failure::Refused(error) => error,
            Failure::Sql(error) => stopped(from_sql(error)),
        })
    }

    fn view(&mut self) -> Result<View<'_>, Cause> {
        let connection =
            self.connection.transaction_with_behavior(TransactionBehavior::Deferred).map_err(from_sql)?;
        schema::require_unchanged(&connection)?;
        let seen = connection
            .prepare_cached("SELECT now FROM jobqueue_store WHERE id = 1")
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
            .map_err(from_sql)?;
        Ok(View { connection, now: self.clock.now(seen) })
    }
}
