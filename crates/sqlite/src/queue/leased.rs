//! Changes and deletes messages by their receipts.

use rusqlite::{OptionalExtension, params};

use crate::batch::{Batch, refuse};
use crate::clock::{after, to_instant};
use crate::error::{Applied, Failure};
use crate::groups::Removed;
use crate::receipt::{Presented, Receipt};
use crate::row_id;
use crate::space::Reserve;
use jobqueue_storage::rules::limits::check_before_expiry;
use jobqueue_storage::{
    ExpiredReceipt, Operation, QueueName, StoreError, StoreErrorKind, UpdateMessage, Updated,
};

/// A message, leased or not. If it has a lease, the lease has the newest receipt, the time of visibility and
/// the count.
const FIND_MESSAGE: &str =
    "SELECT m.expires_at, coalesce(l.until, m.visible_at, m.inserted_at), l.id IS NOT NULL, m.leased,
        coalesce(l.dequeue_count, m.dequeue_count), coalesce(l.receipt, m.receipt)
    FROM jobqueue_message m LEFT JOIN jobqueue_lease l ON l.id = m.id WHERE m.id = ?1";

const RENEW: &str = "UPDATE jobqueue_lease SET until = ?2, receipt = ?3 WHERE id = ?1";

const CHANGE_TEXT: &str = "UPDATE jobqueue_message SET text = ?2 WHERE id = ?1";

const HIDE: &str = "UPDATE jobqueue_message
    SET visible_at = ?2, receipt = ?3, leased = ?4, dequeue_count = ?5, text = coalesce(?6, text) WHERE id = ?1";

const DELETE_LEASE: &str = "DELETE FROM jobqueue_lease WHERE id = ?1";

/// Ends a lease if the receipt is valid at time ?3; with ?4 an expired receipt is accepted too.
const DELETE_LEASE_BY_RECEIPT: &str =
    "DELETE FROM jobqueue_lease WHERE id = ?1 AND receipt = ?2 AND (until > ?3 OR ?4)";

/// Deletes without returning rows, which would cost a tenth of a deletion.
const DELETE_MESSAGE: &str =
    "DELETE FROM jobqueue_message WHERE id = ?1 AND (expires_at IS NULL OR expires_at > ?2)";

/// The leases of adjacent messages that may be deleted at time ?3.
const ADJACENT_LEASES: &str =
    "SELECT l.receipt, l.until FROM jobqueue_lease l CROSS JOIN jobqueue_message m ON m.id = l.id
    WHERE l.id BETWEEN ?1 AND ?2 AND (m.expires_at IS NULL OR m.expires_at > ?3) ORDER BY l.id";

const DELETE_LEASES: &str = "DELETE FROM jobqueue_lease WHERE id BETWEEN ?1 AND ?2";

const DELETE_MESSAGES: &str = "DELETE FROM jobqueue_message WHERE id BETWEEN ?1 AND ?2";

/// The values of `leased` for a message whose lease continues, and for a message that its holder has put
/// back.
const LEASED: i64 = 1;
const PUT_BACK: i64 = 2;

/// A message that the presented receipt may change.
struct HeldMessage {
    expires_at: Option<i64>,
    visible_at: i64,
    has_lease: bool,
    dequeue_count: u32,
}

/// Returns the message, or the reason why the receipt may not change it. The receipt of a put does not
/// expire.
fn find(
    batch: &mut Batch<'_>,
    operation: Operation,
    name: &QueueName,
    presented: Presented,
    expired: ExpiredReceipt,
) -> Applied<HeldMessage> {
    let (now, lease_time, receipt) = (batch.now(), batch.lease_time(), presented.receipt);
    let queue = batch.queue(operation, name)?;
    let id = presented.id.map(|shown| row_id::of_shown(queue, shown));
    let found = batch.statement(FIND_MESSAGE)?.query_row([id], |row| {
        let (visible_at, has_lease): (i64, bool) = (row.get(1)?, row.get(2)?);
        let held = HeldMessage { expires_at: row.get(0)?, visible_at, has_lease, dequeue_count: row.get(4)? };
        let is_over = (has_lease || row.get(3)?) && visible_at <= lease_time;
        let newest = row.get_ref(5)?;
        Ok((held, is_over, receipt.is_some_and(|receipt| newest.as_blob() == Ok(receipt.bytes()))))
    });
    let refused = |kind| Err(refuse(kind, operation, name));
    match found.optional()? {
        Some((held, is_over, is_newest)) if held.expires_at.is_none_or(|end| end > now) => {
            if !is_newest {
                refused(StoreErrorKind::PopReceiptMismatch)
            } else if is_over && expired == ExpiredReceipt::Refuse {
                refused(StoreErrorKind::LeaseExpired)
            } else {
                Ok(held)
            }
        }
        _ => refused(StoreErrorKind::MessageNotFound),
    }
}

/// Changes the visibility, and the text if there is a new one, and gives the message a new receipt.
pub(crate) fn update(
    batch: &mut Batch<'_>,
    name: &QueueName,
    presented: Presented,
    change: &UpdateMessage,
) -> Applied<Updated> {
    let queue = batch.queue(Operation::Update, name)?;
    let id = presented.id.map(|shown| row_id::of_shown(queue, shown));
    let held = find(batch, Operation::Update, name, presented, change.expired)?;
    let now = if change.ends_lease { batch.now() } else { batch.lease_time() };
    let visible_at = after(now, change.visibility);
    check_before_expiry(name, to_instant(visible_at), held.expires_at.map(to_instant))?;
    let (receipt, hidden_until) = (Receipt::random(batch.runtime()), held.visible_at);
    // In a full file a message that is put back keeps its lease until it becomes visible, since that row
    // keeps its length.
    if held.has_lease && (!change.ends_lease || batch.saves_pages()) {
        batch.statement(RENEW)?.execute(params![id, visible_at, receipt])?;
        batch.note_lease(name, visible_at)?;
        if let Some(text) = &change.text {
            batch.leave(Reserve::ForLeases);
            batch.statement(CHANGE_TEXT)?.execute(params![id, text])?;
        }
    } else {
        let leased = if change.ends_lease { PUT_BACK } else { LEASED };
        let values = params![id, visible_at, receipt, leased, held.dequeue_count, change.text];
        batch.leave(Reserve::ForTexts);
        batch.statement(HIDE)?.execute(values)?;
        batch.statement(DELETE_LEASE)?.execute([id])?;
        batch.note_change();
    }
    // Waiting callers would otherwise sleep until the former time. A renewal, which moves that time away,
    // wakes no caller.
    if visible_at < hidden_until || visible_at <= now {
        batch.arrive(name, visible_at)?;
    }
    Ok(Updated::new(receipt.expose(), to_instant(visible_at)))
}

pub(super) fn delete(
    batch: &mut Batch<'_>,
    operation: Operation,
    name: &QueueName,
    presented: Presented,
    expired: ExpiredReceipt,
) -> Applied<()> {
    let queue = batch.queue(operation, name)?;
    let (now, id) = (batch.now(), presented.id.map(|shown| row_id::of_shown(queue, shown)));
    let values = params![id, presented.receipt, now, expired == ExpiredReceipt::Allow];
    if batch.statement(DELETE_LEASE_BY_RECEIPT)?.execute(values)? == 0 {
        // The message has no lease, or the receipt is not valid.
        find(batch, operation, name, presented, expired)?;
    }
    batch.note_change();
    if !batch.has_groups(name)? && batch.statement(DELETE_MESSAGE)?.execute(params![id, now])? == 1 {
        return Ok(());
    }
    // The message may be the first of its group, or it has expired and goes together with its lease.
    let removed = Removed::remove(batch, id).optional()?;
    let is_gone = removed.as_ref().is_none_or(|removed| removed.is_expired(now));
    if let Some(visible_at) = removed.map(|removed| removed.advance(batch, queue)).transpose()?.flatten() {
        batch.arrive(name, visible_at)?;
    }
    if is_gone { Err(refuse(StoreErrorKind::MessageNotFound, operation, name)) } else { Ok(()) }
}

/// Deletes messages. Jobs that were received together mostly end together, so their rows are adjacent.
/// Starting and ending a statement for each would be a third of the cost.
pub(super) fn delete_all(
    batch: &mut Batch<'_>,
    name: &QueueName,
    messages: &[Presented],
    expired: ExpiredReceipt,
) -> Applied<Vec<Result<(), StoreError>>> {
    let mut answers: Vec<_> = messages.iter().map(|_| Ok(())).collect();
    let mut by_id: Vec<_> = messages.iter().copied().enumerate().collect();
    by_id.sort_by_key(|(_, one)| one.id);
    for run in by_id.chunk_by(|(_, one), (_, next)| one.id.is_some_and(|id| next.id == Some(id + 1))) {
        if delete_run(batch, name, run, expired)? {
            continue;
        }
        for &(place, presented) in run {
            match delete(batch, Operation::DeleteAll, name, presented, expired) {
                Ok(()) => {}
                Err(Failure::Refused(error)) => answers[place] = Err(error),
                Err(failure) => return Err(failure),
            }
        }
    }
    Ok(answers)
}

/// Deletes adjacent messages, if all may be deleted and the queue has no groups. Otherwise changes nothing
/// and returns false.
fn delete_run(
    batch: &mut Batch<'_>,
    name: &QueueName,
    run: &[(usize, Presented)],
    expired: ExpiredReceipt,
) -> Applied<bool> {
    let [(_, first), .., (_, last)] = run else { return Ok(false) };
    let (queue, now) = (batch.queue(Operation::DeleteAll, name)?, batch.now());
    if batch.has_groups(name)? {
        return Ok(false);
    }
    let [first, last] = [first, last].map(|one| one.id.map(|shown| row_id::of_shown(queue, shown)));
    let mut leases = batch.statement(ADJACENT_LEASES)?.query(params![first, last, now])?;
    for (_, Presented { receipt, .. }) in run {
        // A receipt is valid for one message only, so the rows need no other comparison.
        let Some((lease, receipt)) = leases.next()?.zip(*receipt) else { return Ok(false) };
        let is_held = expired == ExpiredReceipt::Allow || lease.get::<_, i64>(1)? > now;
        if !is_held || lease.get_ref(0)?.as_blob() != Ok(receipt.bytes()) {
            return Ok(false);
        }
    }
    drop(leases);
    batch.statement(DELETE_LEASES)?.execute([first, last])?;
    batch.statement(DELETE_MESSAGES)?.execute([first, last])?;
    batch.note_change();
    Ok(true)
}
