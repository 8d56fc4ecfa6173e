//! Writes blobs, their leases and their containers.

use std::time::SystemTime;

use bytes::Bytes;
use rusqlite::params;

use super::row::{BlobRow, container, tag, write_lease};
use crate::batch::{Batch, refuse};
use crate::clock::to_instant;
use crate::error::Applied;
use crate::metadata;
use jobqueue_storage::rules::lease::BlobLease;
use jobqueue_storage::{
    BlobName, BlobProperties, ContainerName, LeaseId, Operation, PutBlob, StoreErrorKind,
};

/// The maximum size of a blob in bytes: SQLite's limit for a row, less some room for the other columns.
pub(crate) const MAX_BLOB_BYTES: usize = 1_000_000_000 - 64 * 1024;

const PUT: &str = "INSERT INTO jobqueue_blob (container, name, etag, modified_at, metadata, length, lease_id,
        lease_breaking, lease_millis, lease_until, content)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 0, ?8, ?9, ?10)
    ON CONFLICT (container, name) DO UPDATE SET etag = ?3, modified_at = ?4, metadata = ?5, length = ?6, lease_id = ?7,
        lease_millis = ?8, lease_until = ?9, content = ?10";

/// Writes a whole blob. The caller has checked the arguments.
pub(crate) fn put(
    batch: &mut Batch<'_>,
    blob: &BlobName,
    data: &Bytes,
    options: &PutBlob,
) -> Applied<BlobProperties> {
    let refused = |kind| refuse(kind, Operation::PutBlob, blob);
    let present = BlobRow::find(batch.connection(), Operation::PutBlob, blob)?;
    options.condition.check(present.as_ref().map(|row| tag(row.etag)).as_ref()).map_err(refused)?;
    let lease = present.as_ref().map_or(BlobLease::Available, |row| row.lease);
    let lease = lease.write(to_instant(batch.now()), options.lease).map_err(refused)?;
    let etag = batch.next()?;
    let now = batch.now();
    let (lease_id, millis, until) = write_lease(&lease);
    let container = container(batch.connection(), Operation::PutBlob, blob.container())?;
    batch.connection().prepare_cached(PUT)?.execute(params![
        container,
        blob.name(),
        etag,
        now,
        metadata::to_text(&options.metadata),
        data.len() as i64,
        lease_id,
        millis,
        until,
        &data[..],
    ])?;
    Ok(BlobRow {
        id: 0,
        name: blob.name().to_owned(),
        etag,
        modified_at: now,
        metadata: options.metadata.clone(),
        length: data.len() as u64,
        lease,
    }
    .properties(now))
}

pub(super) fn delete(batch: &mut Batch<'_>, blob: &BlobName, lease: Option<LeaseId>) -> Applied<()> {
    let row = BlobRow::require(batch.connection(), Operation::DeleteBlob, blob)?;
    row.lease
        .write(to_instant(batch.now()), lease)
        .map_err(|kind| refuse(kind, Operation::DeleteBlob, blob))?;
    batch.connection().prepare_cached("DELETE FROM jobqueue_blob WHERE id = ?1")?.execute([row.id])?;
    batch.note_change();
    Ok(())
}

/// Changes a blob's lease by `rule`, which returns the new lease and an answer. Tag and content do not
/// change.
pub(super) fn change_lease<T>(
    batch: &mut Batch<'_>,
    operation: Operation,
    blob: &BlobName,
    rule: impl FnOnce(&BlobLease, SystemTime) -> Result<(BlobLease, T), StoreErrorKind>,
) -> Applied<T> {
    let row = BlobRow::require(batch.connection(), operation, blob)?;
    let (lease, answer) =
        rule(&row.lease, to_instant(batch.now())).map_err(|kind| refuse(kind, operation, blob))?;
    let (id, millis, until) = write_lease(&lease);
    let changed = batch
        .connection()
        .prepare_cached(
            "UPDATE jobqueue_blob SET lease_id = ?2, lease_millis = ?3, lease_until = ?4 WHERE id = ?1",
        )?
        .execute(params![row.id, id, millis, until])?;
    if changed != 1 {
        return Err(rusqlite::Error::StatementChangedRows(changed).into());
    }
    batch.note_change();
    Ok(answer)
}

pub(crate) fn create_container(batch: &mut Batch<'_>, name: &ContainerName) -> Applied<()> {
    let made = batch
        .connection()
        .prepare_cached("INSERT INTO jobqueue_container (name) VALUES (?1) ON CONFLICT DO NOTHING")?
        .execute([name.as_str()])?;
    if made > 0 {
        batch.note_change();
    }
    Ok(())
}

/// Removes a container. Its blobs are unreachable at once, and are deleted in small steps later.
pub(super) fn delete_container(batch: &mut Batch<'_>, name: &ContainerName) -> Applied<()> {
    let id = container(batch.connection(), Operation::DeleteContainer, name)?;
    batch.note_change();
    let connection = batch.connection();
    connection.execute("INSERT INTO jobqueue_garbage (kind, owner) VALUES ('container', ?1)", [id])?;
    connection.execute("DELETE FROM jobqueue_container WHERE id = ?1", [id])?;
    Ok(())
}
