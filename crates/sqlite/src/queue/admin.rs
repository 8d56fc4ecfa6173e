//! Creates, changes and removes queues.

use rusqlite::{OptionalExtension, params};

use crate::batch::{Batch, refuse};
use crate::error::Applied;
use crate::metadata;
use crate::reader::View;
use crate::row_id::QUEUES;
use jobqueue_storage::{Created, Metadata, Operation, QueueName, StoreErrorKind};

/// A queue as the reader sees it.
pub(super) struct Found {
    pub(super) id: i64,
    pub(super) metadata: String,
    /// The row from which on messages are received by their numbers, or one before.
    pub(super) head: i64,
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
            insert(batch, Operation::CreateQueue, name, &metadata::to_text(wanted), delayed)?;
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
    insert(batch, Operation::Clear, name, &text, delayed)
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
        .prepare_cached("SELECT id, metadata, head FROM jobqueue_queue WHERE name = ?1")?
        .query_row([name.as_str()], |row| {
            Ok(Found { id: row.get(0)?, metadata: row.get(1)?, head: row.get(2)? })
        })
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

fn insert(
    batch: &mut Batch<'_>,
    operation: Operation,
    name: &QueueName,
    metadata: &str,
    delayed: i64,
) -> Applied<()> {
    batch.note_change();
    batch.connection().execute(
        "INSERT INTO jobqueue_queue (name, metadata, delayed) VALUES (?1, ?2, ?3)",
        params![name.as_str(), metadata, delayed],
    )?;
    if batch.connection().last_insert_rowid() >= QUEUES {
        return Err(refuse(StoreErrorKind::Full, operation, name));
    }
    Ok(())
}
