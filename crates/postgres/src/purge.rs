//! Removes unreachable rows, a bounded number at a time: expired messages, and the content of deleted queues and containers.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::database::{Call, Database};
use crate::pace::Pace;
use jobqueue_storage::log::warn;
use jobqueue_storage::{Operation, StoreError};
use tokio_postgres::types::Type;

/// The number of messages, and of blobs, that one statement removes.
const MESSAGES: i64 = 500;
const BLOBS: i64 = 16;
/// The statements of a pass, so that a get does not wait for long.
const STATEMENTS: usize = 4;
/// The time between two passes: for expired messages, which can hold up their groups, and for garbage.
const EXPIRED: Duration = Duration::from_secs(1);
const GARBAGE: Duration = Duration::from_secs(10);

const DELETE_EXPIRED: &str =
    "DELETE FROM jobqueue.message WHERE id = ANY (ARRAY(SELECT id FROM jobqueue.message
    WHERE expires_at <= jobqueue.now() ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING id";

const FIND_GARBAGE: &str = "SELECT kind, owner FROM jobqueue.garbage ORDER BY since LIMIT 8";

const DELETE_OF_QUEUE: &str = "DELETE FROM jobqueue.message WHERE id = ANY (ARRAY(
    SELECT id FROM jobqueue.message WHERE queue = $1 LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING id";

const DELETE_OF_CONTAINER: &str = "DELETE FROM jobqueue.blob WHERE id = ANY (ARRAY(
    SELECT id FROM jobqueue.blob WHERE container = $1 LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING id";

/// A queue or container that is gone stays known for a day: a transaction that began before can still put into it.
const FORGET: &str = "DELETE FROM jobqueue.garbage
    WHERE kind = $1 AND owner = $2 AND since < jobqueue.now() - 86400000 RETURNING owner";

/// Says when to remove what.
#[derive(Debug)]
pub(crate) struct Purge {
    database: Arc<Database>,
    expired: Pace,
    garbage: Pace,
}

impl Purge {
    pub(crate) fn new(database: Arc<Database>) -> Self {
        Self { database, expired: Pace::new(EXPIRED), garbage: Pace::new(GARBAGE) }
    }

    /// Removes some of what is due. Returns whether a message was removed, behind which another of its group may be visible now.
    ///
    /// A failure is logged: the operation that has time for this can do without.
    pub(crate) async fn pass(&self) -> bool {
        let removed = self.paced(&self.expired, async || self.expired().await).await.unwrap_or(0);
        self.paced(&self.garbage, async || self.garbage().await).await;
        removed > 0
    }

    async fn paced(
        &self,
        pace: &Pace,
        work: impl AsyncFnOnce() -> Result<usize, StoreError>,
    ) -> Option<usize> {
        if !pace.begin() {
            return None;
        }
        let began = Instant::now();
        let done = work().await.inspect_err(|error| warn!(%error, "unreachable rows were not removed"));
        pace.end(began.elapsed());
        done.ok()
    }

    async fn expired(&self) -> Result<usize, StoreError> {
        let call = Call::of_database(Operation::Clear, &self.database);
        let mut removed = 0;
        for _ in 0..STATEMENTS {
            let rows = self.database.query(call, DELETE_EXPIRED, &[(&MESSAGES, Type::INT8)]).await?;
            removed += rows.len();
            if rows.len() < MESSAGES as usize {
                break;
            }
        }
        Ok(removed)
    }

    async fn garbage(&self) -> Result<usize, StoreError> {
        let call = Call::of_database(Operation::Clear, &self.database);
        let mut removed = 0;
        for row in self.database.query(call, FIND_GARBAGE, &[]).await? {
            let (kind, owner): (String, i32) = (call.get(&row, 0)?, call.get(&row, 1)?);
            let (sql, most) = match kind.as_str() {
                "queue" => (DELETE_OF_QUEUE, MESSAGES),
                _ => (DELETE_OF_CONTAINER, BLOBS),
            };
            for _ in 0..STATEMENTS {
                let values = [(&owner as _, Type::INT4), (&most as _, Type::INT8)];
                let rows = self.database.query(call, sql, &values).await?.len();
                removed += rows;
                if rows < most as usize {
                    break;
                }
            }
            let values = [(&kind as _, Type::TEXT), (&owner as _, Type::INT4)];
            self.database.query(call, FORGET, &values).await?;
        }
        Ok(removed)
    }
}
