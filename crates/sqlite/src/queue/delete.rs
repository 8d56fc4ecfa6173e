//! Deletes leased messages.

use rusqlite::params;

use super::lease::{claim, where_receipt_is_good, why_not};
use crate::batch::Batch;
use crate::error::{Applied, Failure};
use crate::receipt::Presented;
use jobqueue_storage::QueueName;
use jobqueue_storage::{ExpiredReceipt, Operation, StoreError};

const DELETE: &str = where_receipt_is_good!("DELETE FROM jobqueue_message");

/// Deletes one message.
pub(super) fn delete(
    batch: &mut Batch<'_>,
    operation: Operation,
    name: &QueueName,
    presented: Presented,
    expired: ExpiredReceipt,
) -> Applied<()> {
    let claim = claim(batch, operation, name, presented)?;
    let now = batch.now();
    let changed = batch.statement(DELETE)?.execute(params![
        claim.id,
        claim.queue,
        claim.receipt.bytes(),
        now,
        expired == ExpiredReceipt::Allow
    ])?;
    if changed != 1 {
        return Err(why_not(batch, operation, name, &claim));
    }
    batch.note_change();
    Ok(())
}

/// Deletes many messages; each has an answer of its own.
pub(super) fn delete_all(
    batch: &mut Batch<'_>,
    name: &QueueName,
    messages: &[Presented],
    expired: ExpiredReceipt,
) -> Applied<Vec<Result<(), StoreError>>> {
    let mut answers = Vec::with_capacity(messages.len());
    for &presented in messages {
        answers.push(match delete(batch, Operation::DeleteAll, name, presented, expired) {
            Ok(()) => Ok(()),
            Err(Failure::Refused(error)) => Err(error),
            Err(failure) => return Err(failure),
        });
    }
    Ok(answers)
}
