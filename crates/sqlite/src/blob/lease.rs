//! Applies the shared lease rules to the row of a blob.

use std::time::SystemTime;

use rusqlite::params;

use super::row::{BlobRow, write_lease};
use crate::batch::{Batch, refuse};
use crate::error::Applied;
use jobqueue_storage::BlobName;
use jobqueue_storage::rules::lease::BlobLease;
use jobqueue_storage::{Operation, StoreErrorKind};

/// Moves a blob's lease by `rule`, which returns the new lease and an answer. Tag and content do not change.
pub(super) fn apply<T>(
    batch: &mut Batch<'_>,
    operation: Operation,
    blob: &BlobName,
    rule: impl FnOnce(&BlobLease, SystemTime) -> Result<(BlobLease, T), StoreErrorKind>,
) -> Applied<T> {
    let row = BlobRow::require(batch.connection(), operation, blob)?;
    let (lease, answer) = rule(&row.lease, batch.instant()).map_err(|kind| refuse(kind, operation, blob))?;
    let (id, breaking, millis, until) = write_lease(&lease);
    let changed = batch
        .connection()
        .prepare_cached(
            "UPDATE jobqueue_blob SET lease_id = ?2, lease_breaking = ?3, lease_millis = ?4, lease_until = ?5
             WHERE id = ?1",
        )?
        .execute(params![row.id, id, breaking, millis, until])?;
    if changed != 1 {
        return Err(rusqlite::Error::StatementChangedRows(changed).into());
    }
    batch.note_change();
    Ok(answer)
}
