//! Removes unreachable rows, a bounded number at a time: expired messages, and the content of deleted queues and containers.

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

/// The number of messages, and of blobs, that one statement removes.
const MESSAGES_PER_STATEMENT: i64 = 500;
const BLOBS_PER_STATEMENT: i64 = 16;
/// The statements of a kind in a pass.
const STATEMENTS_PER_PASS: usize = 4;
/// The pause between two passes that find little: for expired messages, which can hold up their groups, and for garbage.
const EXPIRED_PAUSE: Duration = Duration::from_secs(1);
const GARBAGE_PAUSE: Duration = Duration::from_secs(10);

/// The condition that the group of a message `m` has no row of a former first. Such a row has passed its turn on, and stays while open transactions may
/// put others behind it ([`PASS_ON_EXPIRED`]). The deletion of the first of a group waits for the transactions that have locked such
/// a row, and with it all other rows that its statement deletes. `OFFSET` keeps the planner from reading the rows of all
/// groups at once.
macro_rules! has_no_former {
    () => {
        "(m.group_hash IS NULL OR NOT EXISTS (SELECT FROM jobqueue.message l
            WHERE l.queue = m.queue AND l.group_hash = m.group_hash AND l.waiting AND l.turn IS NULL OFFSET 0))"
    };
}

/// Builds a statement that removes expired messages, and names the queues in which the next of a group became the first.
///
/// `waiting` is compared as a number: the planner could read all of an index of those that wait, or that do not, which it takes for empty where
/// `ANALYZE` has seen none.
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

/// Passes on the turns of expired messages that are the first of their groups, behind which open transactions put others. Their rows stay as former
/// firsts.
const PASS_ON_EXPIRED: &str = "SELECT q.name FROM (
        SELECT id, queue FROM jobqueue.message
        WHERE expires_at <= (SELECT jobqueue.now()) AND group_hash IS NOT NULL AND waiting::integer = 0
        ORDER BY expires_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED) m
    LEFT JOIN jobqueue.queue q ON q.id = m.queue WHERE jobqueue.pass_on(m.id)";

/// The statements that remove expired messages. Those that wait for another of their group are removed before the others, so that none of them gets a
/// turn.
const REMOVE_EXPIRED: [&str; 3] = [
    delete_expired!("group_hash IS NOT NULL AND waiting::integer = 1"),
    delete_expired!(concat!("waiting::integer = 0 AND ", has_no_former!())),
    PASS_ON_EXPIRED,
];

/// Builds a statement that removes up to $3 messages of queue $1, with numbers up to $2, in the order of an index: those of the queue need not be
/// spread evenly over the table, as the planner would assume of the first ones that it comes to. The number is compared without its index, which the
/// planner could read as a whole where `ANALYZE` has seen an empty table.
///
/// The deletion of the first of a group waits for whoever changes the next one. So no statement holds one that waits in its group together with others:
/// two such statements could wait for each other.
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

/// The statements that remove the messages of a queue: those that wait for another of their group, then the others. They skip messages that another
/// transaction has locked or holds up.
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

/// The same statements with a lock timeout, for one message at a time.
pub(crate) const DELETE_LOCKED_OF_QUEUE: [&str; 2] = [
    delete_locked_of_queue!("m.waiting", "m.group_hash, m.turn"),
    delete_locked_of_queue!("NOT m.waiting", "m.visible_at, m.id"),
];

const DELETE_OF_CONTAINER: &str = "DELETE FROM jobqueue.blob WHERE id = ANY (ARRAY(
    SELECT id FROM jobqueue.blob WHERE container = $1 ORDER BY name LIMIT $2 FOR UPDATE SKIP LOCKED)) RETURNING id";

/// Takes those that were not looked at for the longest time. Other processes take others.
const FIND_GARBAGE: &str = "WITH next AS MATERIALIZED (
        SELECT kind, owner FROM jobqueue.garbage ORDER BY checked LIMIT 8 FOR UPDATE SKIP LOCKED)
    UPDATE jobqueue.garbage g SET checked = jobqueue.now() FROM next n WHERE g.kind = n.kind AND g.owner = n.owner
    RETURNING g.kind, g.owner";

/// A queue or container that is gone stays known for a day, and as long as it has rows: a transaction that began before can still put
/// into it. Each look for a row is in the order of an index: for one without an order the planner may read the table.
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

    /// Starts to remove some of what is due, in tasks that go on while the caller does not wait. A failure is logged.
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

    /// Removes expired messages, and announces those that are the first of their groups now. Returns whether there may be more.
    async fn expired(&self) -> Result<bool, StoreError> {
        let (mut has_more, mut failed) = (false, None);
        for sql in REMOVE_EXPIRED {
            // A statement that fails does not skip the others.
            match self.expired_by(sql).await {
                Ok(more) => has_more |= more,
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(has_more), Err)
    }

    /// Removes expired messages of one kind. Returns whether there may be more.
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

    /// Removes what was in queues and containers that are gone. Returns whether there may be more.
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

    /// Runs a statement that removes up to `most` rows, as long as it does, up to a number of times. Returns whether there may be more.
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

/// Ends a pass. If it has found as much as it could remove, the next one need not wait.
fn end(mut work: Work, done: Result<bool, StoreError>) {
    match done {
        Ok(true) => work.note_unfinished(),
        Ok(false) => {}
        Err(error) => warn!(%error, "the upkeep has not removed unreachable rows; it tries again later"),
    }
}
