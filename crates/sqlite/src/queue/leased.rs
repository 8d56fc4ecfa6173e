//! Changes and deletes messages by their receipts.

use rusqlite::{OptionalExtension, params};

use crate::batch::{Batch, refuse};
use crate::clock::{after, to_instant};
use crate::error::{Applied, Failure};
use crate::groups::Removed;
use crate::receipt::{Presented, Receipt};
use jobqueue_storage::rules::limits::check_before_expiry;
use jobqueue_storage::{
    ExpiredReceipt, Operation, QueueName, StoreError, StoreErrorKind, UpdateMessage, Updated,
};

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

const FIND: &str = where_receipt_is_good!("SELECT expires_at, visible_at FROM jobqueue_message");

const CHANGE: &str = "UPDATE jobqueue_message
    SET visible_at = ?2, receipt = ?3, leased = ?5, text = coalesce(?4, text) WHERE id = ?1";

/// The values of `leased` for a message whose lease goes on, and for one that its holder has put back.
const LEASED: i64 = 1;
const PUT_BACK: i64 = 2;

/// Changes the visibility, and the text if there is a new one, and gives the message a new receipt.
pub(super) fn update(
    batch: &mut Batch<'_>,
    name: &QueueName,
    presented: Presented,
    change: &UpdateMessage,
) -> Applied<Updated> {
    let claim = claim(batch, Operation::Update, name, presented)?;
    let now = batch.now();
    let expired = change.expired == ExpiredReceipt::Allow;
    let found: Option<(Option<i64>, i64)> = batch
        .statement(FIND)?
        .query_row(params![claim.id, claim.queue, claim.receipt.bytes(), now, expired], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .optional()?;
    let Some((expires_at, hidden_until)) = found else {
        return Err(why_not(batch, Operation::Update, name, &claim));
    };
    let visible_at = after(now, change.visibility);
    check_before_expiry(name, to_instant(visible_at), expires_at.map(to_instant))?;
    let receipt = Receipt::random(batch.runtime());
    let leased = if change.ends_lease { PUT_BACK } else { LEASED };
    let values = params![claim.id, visible_at, receipt.bytes(), change.text, leased];
    let changed = batch.statement(CHANGE)?.execute(values)?;
    if changed != 1 {
        return Err(rusqlite::Error::StatementChangedRows(changed).into());
    }
    batch.note_change();
    // Waiting callers would otherwise wait until the former time; a renewal, which moves that time away, notifies
    // nobody.
    if visible_at < hidden_until || visible_at <= now {
        batch.arrive(name, visible_at)?;
    }
    Ok(Updated::new(receipt.expose(), to_instant(visible_at)))
}

const DELETE: &str = where_receipt_is_good!("DELETE FROM jobqueue_message");
/// The same for a queue with groups. Rows are only returned there, since that costs a tenth of a deletion.
const DELETE_FROM_GROUPS: &str =
    concat!(where_receipt_is_good!("DELETE FROM jobqueue_message"), " RETURNING waiting, group_name");

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

struct Claim {
    id: i64,
    queue: i64,
    receipt: Receipt,
}

/// Refuses ids and receipts that this adapter never returned.
fn claim(
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
        None => match newest_receipt(batch, queue, id)? {
            Some(_) => Err(refuse(StoreErrorKind::PopReceiptMismatch, operation, name)),
            None => Err(not_found()),
        },
    }
}

/// Returns the reason why the receipt may not change the message, after a statement with `where_receipt_is_good!` has
/// found no row.
fn why_not(batch: &Batch<'_>, operation: Operation, name: &QueueName, claim: &Claim) -> Failure {
    let kind = match newest_receipt(batch, claim.queue, claim.id) {
        Err(error) => return error.into(),
        Ok(None) => StoreErrorKind::MessageNotFound,
        Ok(Some(newest)) if newest != claim.receipt.bytes() => StoreErrorKind::PopReceiptMismatch,
        Ok(Some(_)) => StoreErrorKind::LeaseExpired,
    };
    refuse(kind, operation, name)
}

/// Returns the receipt of a message; `None` if there is no such message, or it has expired.
fn newest_receipt(batch: &Batch<'_>, queue: i64, id: i64) -> rusqlite::Result<Option<Vec<u8>>> {
    batch
        .connection()
        .prepare_cached(
            "SELECT receipt FROM jobqueue_message
             WHERE id = ?1 AND queue = ?2 AND (expires_at IS NULL OR expires_at > ?3)",
        )?
        .query_row(params![id, queue, batch.now()], |row| row.get(0))
        .optional()
}
