//! Checks receipts, and finds the reason when one is not valid.

use rusqlite::{OptionalExtension, params};

use crate::batch::{Batch, refuse};
use crate::error::{Applied, Failure};
use crate::receipt::{Presented, Receipt};
use jobqueue_storage::QueueName;
use jobqueue_storage::{Operation, StoreErrorKind};

/// Builds a statement on row ?1 of queue ?2 that may be changed with receipt ?3 at time ?4; ?5 accepts expired
/// receipts. The receipt of a put is not `leased` and does not expire.
macro_rules! where_receipt_is_good {
    ($statement:literal) => {
        concat!(
            $statement,
            " WHERE id = ?1 AND queue = ?2 AND receipt = ?3
              AND (expires_at IS NULL OR expires_at > ?4) AND (leased = 0 OR visible_at > ?4 OR ?5)"
        )
    };
}
pub(super) use where_receipt_is_good;

/// One delivery of a message, as the file knows it.
pub(super) struct Claim {
    pub(super) id: i64,
    pub(super) queue: i64,
    pub(super) receipt: Receipt,
}

/// Checks the id and the receipt that the caller presents.
///
/// # Errors
/// `QueueNotFound` if there is no such queue; `MessageNotFound` and `PopReceiptMismatch` for ids and receipts that this
/// adapter never returned.
pub(super) fn claim(
    batch: &mut Batch<'_>,
    operation: Operation,
    name: &QueueName,
    presented: Presented,
) -> Applied<Claim> {
    let queue = batch.queue(operation, name)?;
    let not_found = || refuse(StoreErrorKind::MessageNotFound, operation, name);
    let id = presented.id.ok_or_else(not_found)?;
    match presented.receipt {
        Some(receipt) => Ok(Claim { id, queue, receipt }),
        None if is_there(batch, queue, id)? => {
            Err(refuse(StoreErrorKind::PopReceiptMismatch, operation, name))
        }
        None => Err(not_found()),
    }
}

/// Returns the reason why the receipt may not change the message, after a statement with `where_receipt_is_good!` has
/// found no row.
pub(super) fn why_not(batch: &Batch<'_>, operation: Operation, name: &QueueName, claim: &Claim) -> Failure {
    let newest = batch
        .connection()
        .prepare_cached(
            "SELECT receipt FROM jobqueue_message
             WHERE id = ?1 AND queue = ?2 AND (expires_at IS NULL OR expires_at > ?3)",
        )
        .and_then(|mut statement| {
            statement
                .query_row(params![claim.id, claim.queue, batch.now()], |row| row.get::<_, Vec<u8>>(0))
                .optional()
        });
    let kind = match newest {
        Err(error) => return error.into(),
        Ok(None) => StoreErrorKind::MessageNotFound,
        Ok(Some(newest)) if newest != claim.receipt.bytes() => StoreErrorKind::PopReceiptMismatch,
        Ok(Some(_)) => StoreErrorKind::LeaseExpired,
    };
    refuse(kind, operation, name)
}

fn is_there(batch: &Batch<'_>, queue: i64, id: i64) -> rusqlite::Result<bool> {
    batch
        .connection()
        .prepare_cached(
            "SELECT EXISTS (SELECT 1 FROM jobqueue_message
             WHERE id = ?1 AND queue = ?2 AND (expires_at IS NULL OR expires_at > ?3))",
        )?
        .query_row(params![id, queue, batch.now()], |row| row.get(0))
}
