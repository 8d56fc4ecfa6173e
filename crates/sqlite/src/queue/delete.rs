//! Deletes leased messages.

use rusqlite::{OptionalExtension, params};

use super::lease::{claim, where_receipt_is_good, why_not};
use crate::batch::Batch;
use crate::error::{Applied, Failure};
use crate::groups::Removed;
use crate::receipt::Presented;
use jobqueue_storage::QueueName;
use jobqueue_storage::{ExpiredReceipt, Operation, StoreError};

const DELETE: &str = where_receipt_is_good!("DELETE FROM jobqueue_message");
/// The same for a queue with groups. Rows are only returned there, since that costs a tenth of a deletion.
const DELETE_FROM_GROUPS: &str =
    concat!(where_receipt_is_good!("DELETE FROM jobqueue_message"), " RETURNING waiting, group_name");

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
    let expired = expired == ExpiredReceipt::Allow;
    let parameters = params![claim.id, claim.queue, claim.receipt.bytes(), now, expired];
    let is_removed = if batch.has_groups(name)? {
        let removed = batch.statement(DELETE_FROM_GROUPS)?.query_row(parameters, Removed::of).optional()?;
        let is_removed = removed.is_some();
        if let Some(visible_at) =
            removed.map(|removed| removed.advance(batch, claim.queue)).transpose()?.flatten()
        {
            batch.arrive(name, visible_at)?;
        }
        is_removed
    } else {
        batch.statement(DELETE)?.execute(parameters)? == 1
    };
    if !is_removed {
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
