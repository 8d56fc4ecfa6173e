//! Removes unreachable rows, a bounded number at a time: expired messages, and the content of deleted queues and
//! containers.

use rusqlite::{Connection, OptionalExtension, params};

use super::batch::{Batch, Finished};
use super::clock::StoreClock;
use super::error::{Cause, from_sql};
use super::groups::Removed;
use super::known::Known;
use super::schema;
use jobqueue_storage::StoreErrorKind;

/// The number of messages removed in one transaction.
const MESSAGES: usize = 500;

/// The number of blobs removed in one transaction.
const BLOBS: usize = 16;

const OF_QUEUE: &str = "DELETE FROM jobqueue_message WHERE id IN
    (SELECT id FROM jobqueue_message WHERE id >= ?1 << 42 AND id < ?1 + 1 << 42 LIMIT ?2)";

const LEASES_OF_QUEUE: &str = "DELETE FROM jobqueue_lease WHERE id >= ?1 << 42 AND id < ?1 + 1 << 42";

const OF_CONTAINER: &str =
    "DELETE FROM jobqueue_blob WHERE id IN (SELECT id FROM jobqueue_blob WHERE container = ?1 LIMIT ?2)";

/// Runs one step; returns true if there is more to do. Does nothing while another process holds the write lock.
pub(super) fn step(connection: &Connection, clock: &StoreClock, known: &mut Known) -> Result<bool, Cause> {
    // The application may run `ANALYZE` at any time. On a full file they stay until there is room.
    match schema::forget_statistics(connection) {
        Ok(true) => schema::read_again(connection)?,
        Ok(false) => {}
        Err(cause) if matches!(cause.kind, StoreErrorKind::Full | StoreErrorKind::Timeout) => {}
        Err(cause) => return Err(cause),
    }
    if !is_needed(connection, clock).map_err(from_sql)? {
        return Ok(false);
    }
    connection.execute_batch("BEGIN IMMEDIATE").map_err(from_sql)?;
    let done = in_transaction(connection, clock, std::mem::take(known)).and_then(|done| {
        connection.execute_batch("COMMIT").map_err(from_sql)?;
        Ok(done)
    });
    if !connection.is_autocommit() {
        connection.execute_batch("ROLLBACK").map_err(from_sql)?;
    }
    let (more, finished) = done?;
    *known = finished.known;
    clock.leases_were_moved(finished.moved);
    Ok(more)
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
        .query_map(params![now, MESSAGES as i64], |row| {
            Ok((row.get("id")?, row.get("queue")?, Removed::of(row)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let more = removed.len() == MESSAGES;
    for (id, queue, removed) in removed {
        batch.note_change();
        batch.statement("DELETE FROM jobqueue_lease WHERE id = ?1")?.execute([id])?;
        removed.advance(batch, queue)?;
    }
    Ok(more)
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
    let (sql, limit) = if kind == "queue" { (OF_QUEUE, MESSAGES) } else { (OF_CONTAINER, BLOBS) };
    let connection = batch.connection();
    if connection.execute(sql, params![owner, limit as i64])? == 0 {
        if kind == "queue" {
            connection.execute(LEASES_OF_QUEUE, [owner])?;
        }
        connection
            .execute("DELETE FROM jobqueue_garbage WHERE kind = ?1 AND owner = ?2", params![kind, owner])?;
    }
    Ok(true)
}
