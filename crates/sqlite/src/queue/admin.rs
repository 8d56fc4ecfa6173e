//! Creates, changes and removes queues.

use rusqlite::{OptionalExtension, params, params_from_iter};

use crate::batch::{Batch, refuse};
use crate::error::Applied;
use crate::metadata;
use crate::reader::View;
use jobqueue_storage::{
    Created, Metadata, Operation, QueueName, QueueProperties, StateCounts, StoreErrorKind,
};

/// A queue as the reader sees it.
pub(super) struct Found {
    pub(super) id: i64,
    pub(super) metadata: String,
}

/// Creates a queue unless it exists with the same metadata.
pub(super) fn create(batch: &mut Batch<'_>, name: &QueueName, wanted: &Metadata) -> Applied<Created> {
    batch.flush(name)?;
    let present: Option<String> = batch
        .connection()
        .prepare_cached("SELECT metadata FROM jobqueue_queue WHERE name = ?1")?
        .query_row([name.as_str()], |row| row.get(0))
        .optional()?;
    match present {
        None => {
            // The count is never below that of a former queue of this name, for which subscribers were notified.
            let delayed = batch.next()?;
            insert(batch, name, &metadata::to_text(wanted), delayed)?;
            Ok(Created::New)
        }
        Some(text) if metadata::from_text(&text)? == *wanted => Ok(Created::Existed),
        Some(_) => Err(refuse(StoreErrorKind::QueueAlreadyExists, Operation::CreateQueue, name)),
    }
}

/// Removes a queue. Its messages are unreachable at once, and are removed bit by bit.
pub(super) fn delete(batch: &mut Batch<'_>, name: &QueueName) -> Applied<()> {
    let id = batch.queue(Operation::DeleteQueue, name)?;
    Ok(discard(batch, name, id)?)
}

/// Gives the name a new, empty queue with the same metadata: the time this takes does not grow with the number of
/// messages.
pub(super) fn clear(batch: &mut Batch<'_>, name: &QueueName) -> Applied<()> {
    let id = batch.queue(Operation::Clear, name)?;
    batch.flush(name)?;
    let (text, delayed): (String, i64) = batch.connection().query_row(
        "SELECT metadata, delayed FROM jobqueue_queue WHERE id = ?1",
        [id],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    discard(batch, name, id)?;
    Ok(insert(batch, name, &text, delayed)?)
}

pub(super) fn set_metadata(batch: &mut Batch<'_>, name: &QueueName, metadata: &Metadata) -> Applied<()> {
    let id = batch.queue(Operation::SetQueueMetadata, name)?;
    batch.connection().execute(
        "UPDATE jobqueue_queue SET metadata = ?2 WHERE id = ?1",
        params![id, metadata::to_text(metadata)],
    )?;
    batch.note_change();
    Ok(())
}

/// Returns metadata and count. The messages are counted in their index (some 40 ms for a million), the few expired ones
/// that are not yet removed in theirs.
pub(super) fn properties(view: &View<'_>, name: &QueueName) -> Applied<QueueProperties> {
    let found = find(view, Operation::QueueProperties, name)?;
    let count = |sql| count(view, sql, found.id);
    let count = u64::try_from(count(ALL)? + count(WAITING)? - count(EXPIRED)?).unwrap_or(0);
    Ok(QueueProperties::new(metadata::from_text(&found.metadata)?, count))
}

/// Counts messages of a queue by a statement that takes the queue's row and perhaps the time.
fn count(view: &View<'_>, sql: &str, queue: i64) -> rusqlite::Result<i64> {
    let mut statement = view.connection.prepare_cached(sql)?;
    let parameters = statement.parameter_count();
    let values = [queue, view.now].into_iter().take(parameters);
    statement.query_row(params_from_iter(values), |row| row.get(0))
}

/// All messages, but those that wait for another of their group.
pub(crate) const ALL: &str = "SELECT count(*) FROM jobqueue_message WHERE queue = ?1 AND waiting = 0";
/// Those that wait for another of their group.
pub(crate) const WAITING: &str =
    "SELECT count(*) FROM jobqueue_message WHERE queue = ?1 AND waiting = 1 AND group_name IS NOT NULL";
/// Those that have expired. Without statistics SQLite would take the index of the queue, and read every message.
pub(crate) const EXPIRED: &str = "SELECT count(*) FROM jobqueue_message INDEXED BY jobqueue_message_expiry
    WHERE expires_at <= ?2 AND queue = ?1";
/// Those that have expired and would be visible, or would wait for another of their group.
pub(crate) const EXPIRED_VISIBLE: &str =
    "SELECT count(*) FROM jobqueue_message INDEXED BY jobqueue_message_expiry
    WHERE expires_at <= ?2 AND queue = ?1 AND (visible_at <= ?2 OR waiting = 1)";
/// Those that are not visible, expired or not. They are fewer than the visible ones when a queue is long.
pub(crate) const LATER: &str = "SELECT count(*) FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at > ?2";
/// The unexpired hidden messages: all, never received, and put back.
pub(crate) const HIDDEN: &str = "SELECT count(*), coalesce(sum(leased = 0), 0), coalesce(sum(leased = 2), 0)
    FROM jobqueue_message
    WHERE queue = ?1 AND waiting = 0 AND visible_at > ?2 AND (expires_at IS NULL OR expires_at > ?2)";

/// Returns the number of messages in each state. Messages that are visible, or wait for another of their group, are counted
/// in their indexes alone, hidden ones in the table.
pub(super) fn counts(view: &View<'_>, name: &QueueName) -> Applied<StateCounts> {
    let queue = find(view, Operation::QueueProperties, name)?.id;
    let count = |sql| count(view, sql, queue);
    let visible = count(ALL)? - count(LATER)? + count(WAITING)?;
    let expired = count(EXPIRED_VISIBLE)?;
    let (hidden, delayed, put_back): (i64, i64, i64) = view
        .connection
        .prepare_cached(HIDDEN)?
        .query_row([queue, view.now], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    let number = |count: i64| u64::try_from(count).unwrap_or(0);
    Ok(StateCounts {
        waiting: number(visible - expired),
        delayed: number(delayed),
        backing_off: number(put_back),
        running: number(hidden - delayed - put_back),
    })
}

pub(crate) const NAMES: &str = "SELECT name FROM jobqueue_queue WHERE name >= ?1 ORDER BY name";

pub(super) fn list(view: &View<'_>, prefix: &str) -> Applied<Vec<QueueName>> {
    let mut statement = view.connection.prepare_cached(NAMES)?;
    let mut rows = statement.query([prefix])?;
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        if !name.starts_with(prefix) {
            break;
        }
        // A name that breaks the rules was written by another program and cannot be asked for.
        names.extend(QueueName::new(&name));
    }
    Ok(names)
}

pub(super) fn find(view: &View<'_>, operation: Operation, name: &QueueName) -> Applied<Found> {
    view.connection
        .prepare_cached("SELECT id, metadata FROM jobqueue_queue WHERE name = ?1")?
        .query_row([name.as_str()], |row| Ok(Found { id: row.get(0)?, metadata: row.get(1)? }))
        .optional()?
        .ok_or_else(|| refuse(StoreErrorKind::QueueNotFound, operation, name))
}

fn discard(batch: &mut Batch<'_>, name: &QueueName, id: i64) -> rusqlite::Result<()> {
    batch.flush(name)?;
    batch.note_change();
    let connection = batch.connection();
    connection.execute("INSERT INTO jobqueue_garbage (kind, owner) VALUES ('queue', ?1)", [id])?;
    connection.execute("DELETE FROM jobqueue_queue WHERE id = ?1", [id])?;
    Ok(())
}

fn insert(batch: &mut Batch<'_>, name: &QueueName, metadata: &str, delayed: i64) -> rusqlite::Result<()> {
    batch.note_change();
    batch.connection().execute(
        "INSERT INTO jobqueue_queue (name, metadata, delayed) VALUES (?1, ?2, ?3)",
        params![name.as_str(), metadata, delayed],
    )?;
    Ok(())
}
