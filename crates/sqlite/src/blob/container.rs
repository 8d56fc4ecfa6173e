//! Creates and removes containers.

use rusqlite::{Connection, OptionalExtension};

use crate::batch::{Batch, refuse};
use crate::error::Applied;
use jobqueue_storage::ContainerName;
use jobqueue_storage::{Operation, StoreErrorKind};

/// Creates a container if it is missing.
pub(crate) fn create(batch: &mut Batch<'_>, name: &ContainerName) -> Applied<()> {
    let made = batch
        .connection()
        .prepare_cached("INSERT INTO jobqueue_container (name) VALUES (?1) ON CONFLICT DO NOTHING")?
        .execute([name.as_str()])?;
    if made > 0 {
        batch.note_change();
    }
    Ok(())
}

/// Removes a container. Its blobs are unreachable at once, and are removed bit by bit.
pub(super) fn delete(batch: &mut Batch<'_>, name: &ContainerName) -> Applied<()> {
    let id = find(batch.connection(), Operation::DeleteContainer, name)?;
    batch.note_change();
    let connection = batch.connection();
    connection.execute("INSERT INTO jobqueue_garbage (kind, owner) VALUES ('container', ?1)", [id])?;
    connection.execute("DELETE FROM jobqueue_container WHERE id = ?1", [id])?;
    Ok(())
}

/// Returns the row id of a container.
///
/// # Errors
/// `ContainerNotFound` if there is no container of this name.
pub(super) fn find(connection: &Connection, operation: Operation, name: &ContainerName) -> Applied<i64> {
    connection
        .prepare_cached("SELECT id FROM jobqueue_container WHERE name = ?1")?
        .query_row([name.as_str()], |row| row.get(0))
        .optional()?
        .ok_or_else(|| refuse(StoreErrorKind::ContainerNotFound, operation, name))
}
