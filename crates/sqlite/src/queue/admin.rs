//! Creates, changes and removes queues.

use rusqlite::{OptionalExtension, params};

use crate::batch::{Batch, refuse};
use crate::error::Applied;
use crate::metadata;
use crate::reader::View;
use crate::row_id::QUEUES;
use jobqueue_storage::{Created, Metadata, Operation, QueueName, StoreErrorKind};

/// A queue as the reader sees it.
pub(super) struct FoundQueue {
    pub(super) id: i64,
    pub(super) metadata: String,
    /// The row id from which messages are received by their numbers, or a lower one.
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
            check_room(batch, Operation::CreateQueue, name)?;
            // Usually this count is greater than the last count of a deleted queue with this name. If it is
            // not, subscribers of the former queue find delayed messages by polling until it is.
            let delayed = batch.next()?;
            insert(batch, name, &metadata::to_text(wanted), delayed)?;
            Ok(Created::New)
        }
        Some(text) if metadata::from_text(&text)? == *wanted => Ok(Created::Existed),
        Some(_) => Err(refuse(StoreErrorKind::QueueAlreadyExists, Operation::CreateQueue, name)),
    }
}

/// Removes a queue. Its messages are unreachable at once, and are deleted in small steps later.
pub(super) fn delete(batch: &mut Batch<'_>, name: &QueueName) -> Applied<()> {
    let id = batch.queue(Operation::DeleteQueue, name)?;
    Ok(discard(batch, name, id)?)
}

/// Gives the name to a new, empty queue with the same metadata, so that the time does not grow with the
/// number of messages.
pub(super) fn clear(batch: &mut Batch<'_>, name: &QueueName) -> Applied<()> {
    let id = batch.queue(Operation::Clear, name)?;
    check_room(batch, Operation::Clear, name)?;
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

/// Sets the metadata if it is still `before`.
pub(super) fn replace_metadata(
    batch: &mut Batch<'_>,
    name: &QueueName,
    before: &Metadata,
    metadata: &Metadata,
) -> Applied<()> {
    let id = batch.queue(Operation::SetQueueMetadata, name)?;
    let text: String =
        batch
            .connection()
            .query_row("SELECT metadata FROM jobqueue_queue WHERE id = ?1", [id], |row| row.get(0))?;
    if metadata::from_text(&text)? == *before {
        set_metadata(batch, name, metadata)
    } else {
        Err(refuse(StoreErrorKind::ConditionNotMet, Operation::SetQueueMetadata, name))
    }
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
        // A name that breaks the rules was written by another program; no caller can ask for it.
        names.extend(QueueName::new(&name));
    }
    Ok(names)
}

pub(super) fn find(view: &View<'_>, operation: Operation, name: &QueueName) -> Applied<FoundQueue> {
    view.connection
        .prepare_cached("SELECT id, metadata, head FROM jobqueue_queue WHERE name = ?1")?
        .query_row([name.as_str()], |row| {
            Ok(FoundQueue { id: row.get(0)?, metadata: row.get(1)?, head: row.get(2)? })
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

/// Refuses a new queue if the file has used up its queue ids, before anything is written.
fn check_room(batch: &Batch<'_>, operation: Operation, name: &QueueName) -> Applied<()> {
    let last = "SELECT seq FROM sqlite_sequence WHERE name = 'jobqueue_queue'";
    let last: Option<i64> = batch.connection().query_row(last, [], |row| row.get(0)).optional()?;
    if last.unwrap_or(0) + 1 < QUEUES { Ok(()) } else { Err(refuse(StoreErrorKind::Full, operation, name)) }
}

fn insert(batch: &mut Batch<'_>, name: &QueueName, metadata: &str, delayed: i64) -> rusqlite::Result<()> {
    batch.note_change();
    batch.connection().execute(
        "INSERT INTO jobqueue_queue (name, metadata, delayed) VALUES (?1, ?2, ?3)",
        params![name.as_str(), metadata, delayed],
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::StoreClock;
    use crate::error::Failure;
    use crate::known::Known;
    use crate::tests::{begin, file};
    use jobqueue_storage::runtime::Runtime;

    #[test]
    fn refused_queue_is_not_created_and_refused_clear_leaves_the_queue() {
        let connection = file(&["old"]);
        connection.execute("UPDATE sqlite_sequence SET seq = ?1", [QUEUES - 1]).unwrap();
        let mut batch = begin(&connection, &StoreClock::new(Runtime::new()), Known::default());
        let is_full = |answer: Applied<()>| matches!(answer, Err(Failure::Refused(e)) if e.kind() == StoreErrorKind::Full);
        let [old, new]: [QueueName; 2] = ["old", "new"].map(|name| name.parse().unwrap());
        for _ in 0..2 {
            assert!(is_full(create(&mut batch, &new, &Metadata::new()).map(drop)));
            assert!(is_full(clear(&mut batch, &old)));
        }
        assert!(matches!(batch.queue(Operation::Get, &old), Ok(1)));
        assert!(!batch.finish().unwrap().changed, "nothing was written");
    }
}
