//! The thread that reads, on a connection of its own, so that looks never wait for writes.

use std::sync::Arc;
use std::sync::mpsc::Receiver;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::clock::StoreClock;
use super::error::{Applied, Failure, Subject, from_sql};
use super::health::Health;
use crate::storage::{Operation, StoreError};

/// A question to the reader.
pub(super) type Question = Box<dyn FnOnce(&mut Reader) + Send>;

/// The reader's end of a store.
pub(super) struct Reader {
    pub(super) connection: Connection,
    pub(super) clock: Arc<StoreClock>,
    pub(super) health: Arc<Health>,
}

/// One state of the file, and the time at which to look at it.
pub(super) struct View<'c> {
    /// The connection, inside a read transaction.
    pub(super) connection: Transaction<'c>,
    /// Milliseconds since 1970.
    pub(super) now: i64,
}

impl Reader {
    /// Answers until nobody can ask any more.
    pub(super) fn run(mut self, questions: &Receiver<Question>) {
        for question in questions {
            question(&mut self);
        }
    }

    /// Answers one question.
    pub(super) fn answer<T>(
        &mut self,
        operation: Operation,
        subject: &Subject,
        look: impl FnOnce(&View<'_>) -> Applied<T>,
    ) -> Result<T, StoreError> {
        self.health.poisoned().map_err(|cause| cause.error(operation.as_str(), subject))?;
        self.view().map_err(Failure::Sql).and_then(|view| look(&view)).map_err(|failure| match failure {
            Failure::Refused(error) => error,
            Failure::Sql(error) => {
                let cause = from_sql(error);
                self.health.note(&cause);
                cause.error(operation.as_str(), subject)
            }
        })
    }

    fn view(&mut self) -> rusqlite::Result<View<'_>> {
        let connection = self.connection.transaction_with_behavior(TransactionBehavior::Deferred)?;
        let seen = connection
            .prepare_cached("SELECT now FROM jobqueue_store WHERE id = 1")?
            .query_row([], |row| row.get(0))?;
        Ok(View { connection, now: self.clock.now(seen) })
    }
}
