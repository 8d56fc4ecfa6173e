//! Removes unreachable rows, a bounded number at a time: expired messages, and the contents of deleted queues
//! and containers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::arrivals::ArrivalHub;
use crate::database::{Call, Database, Parameter};
use crate::pace::{Pace, Work};
use jobqueue_storage::log::warn;
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{Operation, QueueName, StoreError};
use tokio_postgres::types::Type;

/// The maximum number of messages, and of blobs, that a statement removes.
const MESSAGES_PER_STATEMENT: i64 = 500;
const BLOBS_PER_STATEMENT: i64 = 16;
/// The maximum number of statements of a kind in a pass.
const STATEMENTS_PER_PASS: usize = 4;
/// The pauses between passes that remove everything they find: for expired messages, which can hold up their
/// groups, and for garbage.
const EXPIRED_PAUSE: Duration = Duration::from_secs(1);
const GARBAGE_PAUSE: Duration = Duration::from_secs(10);

/// The condition that the group of a message `m` has no row of a former first message. Such a row has passed
/// its turn on, and stays while open transactions may add messages behind it ([`PASS_ON_EXPIRED`]). The
/// deletion of the first message of a group waits for the transactions that have locked such a row, and all
/// other deletions of the same statement wait with it. `OFFSET` keeps the planner from reading the rows of
/// all groups at once.
macro_rules! has_no_former {
    () => {
        "(m.group_hash IS NULL OR NOT EXISTS (SELECT FROM jobqueue.message l
            WHERE l.queue = m.queue AND l.group_hash = m.group_hash AND l.waiting AND l.turn IS NULL OFFSET 0))"
    };
}

/// Builds a statement that removes expired messages, and returns the names of the queues in which the next
/// message of a group became the first.
///
/// `waiting` is compared as a number so that the partial indexes on it do not match. The planner takes such
/// an index for empty where `ANALYZE` saw no such messages, and could read all of it.
macro_rules! delete_expired {
    ($which:expr) => {
        concat!(
            "WITH gone AS (DELETE FROM jobqueue.message WHERE id = ANY (ARRAY(
                SELECT id FROM jobqueue.message m WHERE expires_at <= (SELECT jobqueue.now()) AND ",
            $which,
            " ORDER BY expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING queue, group_hash IS NOT NULL AND NOT waiting AS advances)
            SELECT q.name FROM gone g LEFT JOIN jobqueue.queue q ON q.id = g.queue AND g.advances"
        )
    };
}

/// Passes on the turns of expired messages that are the first of groups to which open transactions are adding
/// messages. Their rows stay as former first messages.
const PASS_ON_EXPIRED: &str = "SELECT q.name FROM (
        SELECT id, queue FROM jobqueue.message
        WHERE expires_at <= (SELECT jobqueue.now()) AND group_hash IS NOT NULL AND waiting::integer = 0
        ORDER BY expires_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED) m
    LEFT JOIN jobqueue.queue q ON q.id = m.queue WHERE jobqueue.pass_on(m.id)";

/// The statements that remove expired messages. Messages that wait for another message of their group are
/// removed first, so that no expired message gets a turn.
const REMOVE_EXPIRED: [&str; 3] = [
    delete_expired!("group_hash IS NOT NULL AND waiting::integer = 1"),
    delete_expired!(concat!("waiting::integer = 0 AND ", has_no_former!())),
    PASS_ON_EXPIRED,
];

/// Builds a statement that removes up to $3 messages of queue $1, with numbers up to $2, in the order of an
/// index. Without an order the planner would assume that the messages of the queue are spread evenly over the
/// table, and scan it for the first ones. The number is compared without its index, which the planner could
/// read as a whole where `ANALYZE` saw an empty table.
///
/// The deletion of the first message of a group waits for any transaction that changes the next message. So
/// no statement locks messages that wait in groups together with messages that do not: two such statements
/// could deadlock.
macro_rules! delete_of_queue {
    ($from:literal, $which:expr, $order:literal, $lock:literal) => {
        concat!(
            "DELETE FROM jobqueue.message WHERE id = ANY (ARRAY(SELECT m.id FROM ",
            $from,
            "jobqueue.message m WHERE m.queue = $1 AND ",
            $which,
            " AND m.id + 0 <= $2 ORDER BY ",
            $order,
            " LIMIT $3 FOR UPDATE OF m",
            $lock,
            ")) RETURNING id"
        )
    };
}

/// The statements that remove the messages of a queue: first the messages that wait for another message of
/// their group, then the others. They skip messages that another transaction has locked or holds up.
pub(crate) const DELETE_OF_QUEUE: [&str; 2] = [
    delete_of_queue!("", "m.waiting", "m.group_hash, m.turn", " SKIP LOCKED"),
    delete_of_queue!(
        "",
        concat!("NOT m.waiting AND ", has_no_former!()),
        "m.visible_at, m.id",
        " SKIP LOCKED"
    ),
];
/// Builds the same statement with a lock timeout of $4.
macro_rules! delete_locked_of_queue {
    ($which:literal, $order:literal) => {
        concat!(
            "WITH at AS MATERIALIZED (SELECT pg_catalog.set_config('lock_timeout', $4, true)) ",
            delete_of_queue!("at, ", $which, $order, "")
        )
    };
}

/// The same statements with a lock timeout. They are used for one message at a time.
pub(crate) const DELETE_LOCKED_OF_QUEUE: [&str; 2] = [
    delete_locked_of_queue!("m.waiting", "m.group_hash, m.turn"),
    delete_locked_of_queue!("NOT m.waiting", "m.visible_at, m.id"),
];

const DELETE_OF_CONTAINER: &str = "DELETE FROM jobqueue.blob WHERE id = ANY (ARRAY(
    SELECT id FROM jobqueue.blob WHERE container = $1 ORDER BY name LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING id";

/// Selects the garbage that was not checked for the longest time, and skips garbage that another process has
/// selected.
const FIND_GARBAGE: &str = "WITH next AS MATERIALIZED (
        SELECT kind, owner FROM jobqueue.garbage ORDER BY checked LIMIT 8 FOR UPDATE SKIP LOCKED)
    UPDATE jobqueue.garbage g SET checked = jobqueue.now() FROM next n WHERE g.kind = n.kind AND g.owner = n.owner
    RETURNING g.kind, g.owner";

/// Forgets a deleted queue or container after a day, once it has no rows left: a transaction that began
/// before the deletion can still add rows. Each search for a row has the order of an index, because without
/// an order the planner may read the whole table.
const FORGET: &str = "DELETE FROM jobqueue.garbage WHERE kind = $1 AND owner = $2 AND CASE
        WHEN since >= jobqueue.now() - 86400000 THEN false
        WHEN kind = 'queue' THEN (SELECT id FROM jobqueue.message WHERE queue = $2 AND waiting ORDER BY group_hash, turn LIMIT 1) IS NULL
            AND (SELECT id FROM jobqueue.message WHERE queue = $2 AND NOT waiting ORDER BY visible_at, id LIMIT 1) IS NULL
        ELSE (SELECT id FROM jobqueue.blob WHERE container = $2 ORDER BY name LIMIT 1) IS NULL END
    RETURNING owner";

/// Removes unreachable rows in the background, at intervals.
#[derive(Debug)]
pub(crate) struct Purge {
    database: Arc<Database>,
    runtime: Runtime,
    arrivals: Arc<ArrivalHub>,
    expired: Pace,
    garbage: Pace,
}

impl Purge {
    pub(crate) fn new(database: Arc<Database>, runtime: Runtime, arrivals: Arc<ArrivalHub>) -> Arc<Self> {
        let (expired, garbage) = (Pace::new(EXPIRED_PAUSE), Pace::new(GARBAGE_PAUSE));
        Arc::new(Self { database, runtime, arrivals, expired, garbage })
    }

    /// Starts tasks that remove some of the rows that are due. The caller does not wait for them, and their
    /// failures are logged.
    pub(crate) fn start(self: &Arc<Self>) {
        if let Some(work) = self.expired.begin() {
            let purge = Arc::clone(self);
            self.runtime.spawn(async move { end(work, purge.expired().await) });
        }
        if let Some(work) = self.garbage.begin() {
            let purge = Arc::clone(self);
            self.runtime.spawn(async move { end(work, purge.garbage().await) });
        }
    }

    /// Removes expired messages, and announces the messages that became the first of their groups. Returns
    /// whether there may be more to remove.
    async fn expired(&self) -> Result<bool, StoreError> {
        let (mut has_more, mut failed) = (false, None);
        for sql in REMOVE_EXPIRED {
            // The other statements run even if one fails.
            match self.expired_by(sql).await {
                Ok(more) => has_more |= more,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(has_more), Err)
    }

    /// Removes expired messages by a statement of [`REMOVE_EXPIRED`]. Returns whether there may be more to
    /// remove.
    async fn expired_by(&self, sql: &str) -> Result<bool, StoreError> {
        let call = Call::of_database(Operation::Clear, &self.database);
        for _ in 0..STATEMENTS_PER_PASS {
            let rows = self.database.query(call, sql, &[(&MESSAGES_PER_STATEMENT, Type::INT8)]).await?;
            let mut advanced = BTreeSet::new();
            for row in &rows {
                let name: Option<&str> = call.get(row, 0)?;
                advanced.extend(name.and_then(|name| QueueName::new(name).ok()));
            }
            for queue in &advanced {
                self.arrivals.announce(&self.database, &self.runtime, queue);
            }
            if rows.len() < MESSAGES_PER_STATEMENT as usize {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes the rows of deleted queues and containers. Returns whether there may be more to remove.
    async fn garbage(&self) -> Result<bool, StoreError> {
        let call = Call::of_database(Operation::Clear, &self.database);
        let mut has_more = false;
        for row in self.database.query(call, FIND_GARBAGE, &[]).await? {
            let (kind, owner): (&str, i32) = (call.get(&row, 0)?, call.get(&row, 1)?);
            let owned: Parameter<'_> = (&owner, Type::INT4);
            if kind == "queue" {
                for sql in DELETE_OF_QUEUE {
                    let values =
                        [owned.clone(), (&i64::MAX, Type::INT8), (&MESSAGES_PER_STATEMENT, Type::INT8)];
                    has_more |= self.repeat(call, sql, &values, MESSAGES_PER_STATEMENT).await?;
                }
            } else {
                let values = [owned, (&BLOBS_PER_STATEMENT, Type::INT8)];
                has_more |= self.repeat(call, DELETE_OF_CONTAINER, &values, BLOBS_PER_STATEMENT).await?;
            }
            let values = [(&kind as _, Type::TEXT), (&owner as _, Type::INT4)];
            self.database.query(call, FORGET, &values).await?;
        }
        Ok(has_more)
    }

    /// Repeats a statement that removes up to `limit` rows until it removes fewer, at most
    /// [`STATEMENTS_PER_PASS`] times. Returns whether there may be more to remove.
    async fn repeat(
        &self,
        call: Call<'_>,
        sql: &str,
        values: &[Parameter<'_>],
        limit: i64,
    ) -> Result<bool, StoreError> {
        for _ in 0..STATEMENTS_PER_PASS {
            if self.database.query(call, sql, values).await?.len() < limit as usize {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Ends a pass. If there may be more to remove, the next pass need not wait for its interval.
fn end(mut work: Work, done: Result<bool, StoreError>) {
    match done {
        Ok(true) => work.note_unfinished(),
        Ok(false) => {}
        Err(error) => warn!(%error, "the upkeep has not removed unreachable rows; it tries again later"),
    }
}
