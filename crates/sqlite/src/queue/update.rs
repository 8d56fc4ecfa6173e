//! Changes a leased message.

use rusqlite::{OptionalExtension, params};

use super::lease::{claim, where_receipt_is_good, why_not};
use crate::batch::Batch;
use crate::clock::{after, to_instant};
use crate::error::Applied;
use crate::receipt::{Presented, Receipt};
use jobqueue_storage::QueueName;
use jobqueue_storage::rules::limits::check_before_expiry;
use jobqueue_storage::{ExpiredReceipt, Operation, UpdateMessage, Updated};

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
