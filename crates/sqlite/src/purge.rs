//! Removes unreachable rows, a bounded number at a time: expired messages, and the content of deleted queues
//! and containers.

use rusqlite::{Connection, OptionalExtension, params};

use super::batch::{Batch, Finished};
use super::clock::StoreClock;
use super::error::{Cause, from_sql};
use super::groups::Removed;
use super::known::Known;
use super::schema;
use jobqueue_storage::QueueName;

/// The number of messages removed in one transaction.
const MESSAGES_PER_STEP: usize = 500;

/// The maximum number of blobs removed in one transaction, and the size in bytes above which no further blob
/// is removed: SQLite reads each page of a blob.
const BLOBS_PER_STEP: usize = 16;
const BLOB_BYTES_PER_STEP: i64 = 8 << 20;

const DELETE_MESSAGES_OF_QUEUE: &str = "DELETE FROM jobqueue_message WHERE id IN
    (SELECT id FROM jobqueue_message WHERE id >= ?1 << 42 AND id < ?1 + 1 << 42 LIMIT ?2)";

const DELETE_LEASES_OF_QUEUE: &str = "DELETE FROM jobqueue_lease WHERE id >= ?1 << 42 AND id < ?1 + 1 << 42";

const DELETE_BLOBS_OF_CONTAINER: &str = "DELETE FROM jobqueue_blob WHERE id IN
    (SELECT id FROM
        (SELECT id, sum(length) OVER (ROWS UNBOUNDED PRECEDING) - length AS before
         FROM (SELECT id, length FROM jobqueue_blob WHERE container = ?1 LIMIT ?2))
     WHERE before < ?3)";

/// The result of one step.
#[derive(Default)]
pub(super) struct Purged {
    /// True if there is more to do.
    pub(super) has_more: bool,
    /// The queues whose subscriptions must be notified, because a message that blocked its group was removed.
    pub(super) arrived: Vec<QueueName>,
}

/// Runs one step. Does nothing while another process holds the write lock.
pub(super) fn step(connection: &Connection, clock: &StoreClock, known: &mut Known) -> Result<Purged, Cause> {
    // The application may run `ANALYZE` at any time.
    if schema::forget_statistics(connection)? {
        schema::read_again(connection)?;
    }
    if !is_needed(connection, clock).map_err(from_sql)? {
        return Ok(Purged::default());
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(from_sql)?;
    let done = in_transaction(connection, clock, std::mem::take(known)).and_then(|done| {
        connection.execute_batch("COMMIT").map_err(from_sql)?;
        Ok(done)
    });
    if !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK").map_err(from_sql)?;
    }
    let (has_more, finished) = done?;
    *known = finished.known;
    clock.leases_were_moved(finished.moved);
    Ok(Purged { has_more, arrived: finished.arrived })
}

fn is_needed(connection: &Connection, clock: &StoreClock) -> rusqlite::Result<bool> {
    connection
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM jobqueue_message WHERE expires_at <= ?1)
                 OR EXISTS (SELECT 1 FROM jobqueue_garbage)",
        )?
        .query_row([clock.now(0)], |row| row.get(0))
}

fn in_transaction(
    connection: &Connection,
    clock: &StoreClock,
    known: Known,
) -> Result<(bool, Finished), Cause> {
    let mut batch = Batch::begin(connection, clock, known)?;
    let mut remove = || Ok(expired(&mut batch)? | garbage(&mut batch)?);
    let more = remove().map_err(from_sql)?;
    Ok((more, batch.finish().map_err(from_sql)?))
}

fn expired(batch: &mut Batch<'_>) -> rusqlite::Result<bool> {
    let now = batch.now();
    let mut statement = batch.connection().prepare_cached(
        "DELETE FROM jobqueue_message WHERE id IN
             (SELECT id FROM jobqueue_message WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)
             RETURNING id, queue, expires_at, waiting, group_name",
    )?;
    let removed: Vec<(i64, i64, Removed)> = statement
        .query_map(params![now, MESSAGES_PER_STEP as i64], |row| {
            Ok((row.get("id")?, row.get("queue")?, Removed::of(row)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let more = removed.len() == MESSAGES_PER_STEP;
    for (id, queue, removed) in removed {
        batch.note_change();
        batch.statement("DELETE FROM jobqueue_lease WHERE id = ?1")?.execute([id])?;
        if let Some(visible_at) = removed.advance(batch, queue)? {
            arrive(batch, queue, visible_at)?;
        }
    }
    Ok(more)
}

/// Records that the next message of a group becomes visible at `visible_at`, unless the queue was deleted.
fn arrive(batch: &mut Batch<'_>, queue: i64, visible_at: i64) -> rusqlite::Result<()> {
    let name = "SELECT name FROM jobqueue_queue WHERE id = ?1";
    let name: Option<String> = batch.statement(name)?.query_row([queue], |row| row.get(0)).optional()?;
    match name.and_then(|name| QueueName::new(&name).ok()) {
        Some(name) => batch.arrive(&name, visible_at),
        None => Ok(()),
    }
}

fn garbage(batch: &mut Batch<'_>) -> rusqlite::Result<bool> {
    let found: Option<(String, i64)> = batch
        .connection()
        .query_row("SELECT kind, owner FROM jobqueue_garbage LIMIT 1", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let Some((kind, owner)) = found else { return Ok(false) };
    batch.note_change();
    let (connection, is_queue) = (batch.connection(), kind == "queue");
    let removed = if is_queue {
        connection.execute(DELETE_MESSAGES_OF_QUEUE, params![owner, MESSAGES_PER_STEP as i64])?
    } else {
        connection
            .execute(DELETE_BLOBS_OF_CONTAINER, params![owner, BLOBS_PER_STEP as i64, BLOB_BYTES_PER_STEP])?
    };
    if removed == 0 {
        if is_queue {
            connection.execute(DELETE_LEASES_OF_QUEUE, [owner])?;
        }
        connection
            .execute("DELETE FROM jobqueue_garbage WHERE kind = ?1 AND owner = ?2", params![kind, owner])?;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::tests::file;
    use jobqueue_storage::clock::ManualClock;
    use jobqueue_storage::runtime::Runtime;

    fn removed(connection: &Connection) -> Purged {
        let now = std::time::UNIX_EPOCH + Duration::from_secs(1_000);
        let clock = StoreClock::new(Runtime::new().with_clock(Arc::new(ManualClock::at(now))));
        step(connection, &clock, &mut Known::default()).map_err(|cause| cause.kind).unwrap()
    }

    /// Otherwise a worker would notice only by polling that the next message of the group can be received.
    #[test]
    fn removal_of_the_first_of_a_group_announces_the_next() {
        for (visible_at, delayed) in [(0, 0), (2_000_000, 1)] {
            let connection = file(&["queue"]);
            for (waiting, expires_at) in [(0, Some(1)), (1, None)] {
                let insert = "INSERT INTO jobqueue_message (queue, visible_at, inserted_at, dequeue_count, leased, waiting, receipt,
                    text, group_name, turn, expires_at) VALUES (1, ?1, 0, 0, 0, ?2, x'', '', 'a', ?2, ?3)";
                connection.execute(insert, params![visible_at, waiting, expires_at]).unwrap();
            }
            assert_eq!(removed(&connection).arrived, ["queue"]);
            let count = "SELECT delayed FROM jobqueue_queue";
            assert_eq!(connection.query_row(count, [], |row| row.get::<_, i64>(0)).unwrap(), delayed);
        }
    }

    #[test]
    fn large_blobs_of_a_container_are_removed_a_few_at_a_time() {
        let connection = file(&[]);
        connection.execute("INSERT INTO jobqueue_garbage VALUES ('container', 1)", []).unwrap();
        for name in 0..4 {
            let insert = "INSERT INTO jobqueue_blob (container, name, etag, modified_at, metadata, length, lease_breaking, content)
                VALUES (1, ?1, 1, 0, '', ?2, 0, zeroblob(?2))";
            connection.execute(insert, params![name.to_string(), 5 << 20]).unwrap();
        }
        let count = || connection.query_row("SELECT count(*) FROM jobqueue_blob", [], |row| row.get(0));
        for left in [2, 0, 0] {
            assert!(removed(&connection).has_more);
            assert_eq!(count(), Ok(left));
        }
        assert!(!removed(&connection).has_more);
    }
}
