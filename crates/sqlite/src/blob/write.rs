//! Writes and deletes blobs.

use bytes::Bytes;
use rusqlite::{ToSql, params};

use super::container;
use super::row::{BlobRow, tag, write_lease};
use crate::batch::{Batch, refuse};
use crate::error::Applied;
use crate::metadata;
use jobqueue_storage::BlobName;
use jobqueue_storage::rules::lease::BlobLease;
use jobqueue_storage::{BlobProperties, Condition, ETag, LeaseId, Operation, PutBlob, StoreErrorKind};

/// The greatest number of bytes of a blob: SQLite's limit for a row, less some room for the other columns.
pub(crate) const MAX_BLOB_BYTES: usize = 1_000_000_000 - 64 * 1024;

/// Writes a whole blob. The caller has checked the arguments.
pub(crate) fn put(
    batch: &mut Batch<'_>,
    blob: &BlobName,
    data: &Bytes,
    options: &PutBlob,
) -> Applied<BlobProperties> {
    let refused = |kind| refuse(kind, Operation::PutBlob, blob);
    let present = BlobRow::find(batch.connection(), Operation::PutBlob, blob)?;
    check_condition(&options.condition, present.as_ref().map(|row| tag(row.etag))).map_err(refused)?;
    let lease = present.as_ref().map_or(BlobLease::Available, |row| row.lease);
    let lease = lease.write(batch.instant(), options.lease).map_err(refused)?;
    let etag = batch.next()?;
    let now = batch.now();
    let (lease_id, breaking, millis, until) = write_lease(&lease);
    let values = params![
        etag,
        now,
        metadata::to_text(&options.metadata),
        data.len() as i64,
        lease_id,
        breaking,
        millis,
        until,
        &data[..],
    ];
    write_row(batch, blob, present.as_ref(), values)?;
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

/// Updates the row `present`, or inserts one if there is none. `values` are the columns except the container and the name.
fn write_row(
    batch: &Batch<'_>,
    blob: &BlobName,
    present: Option<&BlobRow>,
    values: &[&dyn ToSql],
) -> Applied<()> {
    match present {
        Some(row) => {
            let mut update = batch.connection().prepare_cached(
                "UPDATE jobqueue_blob SET etag = ?1, modified_at = ?2, metadata = ?3, length = ?4, lease_id = ?5,
                 lease_breaking = ?6, lease_millis = ?7, lease_until = ?8, content = ?9 WHERE id = ?10",
            )?;
            update.execute(&[values, params![row.id]].concat()[..])?;
        }
        None => {
            let container = container::find(batch.connection(), Operation::PutBlob, blob.container())?;
            let mut insert = batch.connection().prepare_cached(
                "INSERT INTO jobqueue_blob (etag, modified_at, metadata, length, lease_id, lease_breaking,
                 lease_millis, lease_until, content, container, name)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
            )?;
            insert.execute(&[values, params![container, blob.name()]].concat()[..])?;
        }
    }
    Ok(())
}

pub(super) fn delete(batch: &mut Batch<'_>, blob: &BlobName, lease: Option<LeaseId>) -> Applied<()> {
    let row = BlobRow::require(batch.connection(), Operation::DeleteBlob, blob)?;
    row.lease.write(batch.instant(), lease).map_err(|kind| refuse(kind, Operation::DeleteBlob, blob))?;
    batch.connection().prepare_cached("DELETE FROM jobqueue_blob WHERE id = ?1")?.execute([row.id])?;
    batch.note_change();
    Ok(())
}

fn check_condition(condition: &Condition, present: Option<ETag>) -> Result<(), StoreErrorKind> {
    match (condition, present) {
        (Condition::IfAbsent, Some(_)) => Err(StoreErrorKind::BlobAlreadyExists),
        (Condition::IfMatch(wanted), present) if present.as_ref() != Some(wanted) => {
            Err(StoreErrorKind::ConditionNotMet)
        }
        _ => Ok(()),
    }
}
