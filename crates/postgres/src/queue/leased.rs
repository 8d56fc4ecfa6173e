//! Changes and deletes messages by their receipts.

use std::collections::HashSet;

use tokio_postgres::types::Type;

use super::refusal::{LOOK, Look, reason};
use super::update::{UPDATE_FREE, Update};
use crate::database::{Call, Database};
use crate::driver::Value;
use crate::error;
use crate::receipt::{Presented, ReceiptUse};
use crate::store::Store;
use jobqueue_storage::{
    ExpiredReceipt, MessageRef, Operation, QueueName, StoreError, StoreErrorKind, UpdateMessage, Updated,
};

/// The condition that a message is alive, and that its lease goes on if that is asked for.
macro_rules! is_deletable {
    () => {
        "(m.expires_at IS NULL OR m.expires_at > jobqueue.now()) AND (w.late OR m.lease = 0 OR m.visible_at > jobqueue.now())"
    };
}

/// Builds a statement that deletes messages whose receipts are good. $4 accepts expired ones. Each lock is waited for no longer than $5
/// says. The clock is read again when the locks are held. What is refused is not locked, since a get would pass it over.
///
/// The queue is compared so that the planner has no other index than the one by number: that by queue has an entry for each message that is done
/// while a transaction may still look at it.
macro_rules! delete {
    ($which:literal, $lock:literal) => {
        concat!(
            "WITH at AS MATERIALIZED (
                SELECT id, set_config('lock_timeout', coalesce($5, current_setting('lock_timeout')), true) FROM jobqueue.queue WHERE name = $1
            ), held AS MATERIALIZED (
                SELECT m.id, w.receipt, w.late FROM at, unnest($2::bigint[], $3::bytea[], $4::boolean[]) AS w (id, receipt, late),
                    jobqueue.message m
                WHERE m.id = w.id AND m.receipt = w.receipt AND m.queue + 0 = at.id AND ",
            is_deletable!(), $which, " FOR UPDATE OF m", $lock,
            ") DELETE FROM jobqueue.message m USING held w WHERE m.id = w.id AND m.receipt = w.receipt AND ",
            is_deletable!(), " RETURNING m.id, m.receipt, m.group_hash IS NOT NULL"
        )
    };
}

/// Deletes those that no other transaction holds up. The deletion of the first of a group waits for whoever changes the next one; so a message that
/// waits in its group is not deleted together with others: two such statements could wait for each other.
const DELETE_FREE: &str = delete!(" AND NOT m.waiting", " SKIP LOCKED");
/// Deletes one message, for which it waits with nothing in hand.
const DELETE_HELD: &str = delete!("", "");

/// The answers to deletions, in their order.
pub(super) struct Deleted {
    /// `None` for a message that another transaction holds up.
    pub(super) answers: Vec<Option<Result<(), StoreError>>>,
    /// True if a message of a group was deleted: the next of its group may be visible now.
    pub(super) advances: bool,
}

/// Deletes the messages of a queue that no other transaction holds up, in one statement.
pub(super) async fn delete(
    database: &Database,
    call: Call<'_>,
    queue: &QueueName,
    deletions: &[ReceiptUse],
) -> Deleted {
    let (mut gone, advances) = match remove(database, call, queue, deletions, None).await {
        Ok(removed) => removed,
        Err(error) => {
            let answers = error.for_each(deletions.len()).map(|error| Some(Err(error))).collect();
            return Deleted { answers, advances: true };
        }
    };
    // Of two deletions under one receipt, the second is refused.
    let is_done: Vec<bool> = deletions.iter().map(|deletion| gone.remove(&deletion.presented)).collect();
    let refused: Vec<ReceiptUse> =
        deletions.iter().zip(&is_done).filter(|(_, done)| !**done).map(|(one, _)| *one).collect();
    let mut reasons = reasons(database, call, queue, &refused, None).await.into_iter();
    let answers = is_done.into_iter().map(|done| match done {
        true => Some(Ok(())),
        // No reason: it is held up.
        false => reasons.next().flatten().map(Err),
    });
    Deleted { answers: answers.collect(), advances }
}

/// The answer to the deletion of one message: `None` if another transaction still holds it up.
pub(super) struct DeletedAlone {
    pub(super) answer: Option<Result<(), StoreError>>,
    pub(super) advances: bool,
}

/// Deletes a message that another transaction holds up, if that ends in time.
pub(super) async fn delete_held(
    database: &Database,
    call: Call<'_>,
    queue: &QueueName,
    deletion: ReceiptUse,
    lock_limit: &str,
) -> DeletedAlone {
    match remove(database, call, queue, &[deletion], Some(lock_limit)).await {
        Ok((gone, advances)) if gone.contains(&deletion.presented) => {
            DeletedAlone { answer: Some(Ok(())), advances }
        }
        Ok(_) => {
            let reason = reasons(database, call, queue, &[deletion], None).await.pop().flatten();
            let reason = reason.unwrap_or_else(|| call.refuse(StoreErrorKind::PopReceiptMismatch));
            DeletedAlone { answer: Some(Err(reason)), advances: false }
        }
        Err(error) if error::is_lock_timeout(&error) => DeletedAlone { answer: None, advances: false },
        Err(error) => DeletedAlone { answer: Some(Err(error)), advances: true },
    }
}

/// Deletes messages, and returns which. With a limit it waits for locks for so long, otherwise it passes locked ones over.
async fn remove(
    database: &Database,
    call: Call<'_>,
    queue: &QueueName,
    deletions: &[ReceiptUse],
    lock_limit: Option<&str>,
) -> Result<(HashSet<Presented>, bool), StoreError> {
    let ids: Vec<i64> = deletions.iter().map(|deletion| deletion.presented.row).collect();
    let receipts: Vec<&[u8]> = deletions.iter().map(|deletion| deletion.presented.bytes()).collect();
    let late: Vec<bool> =
        deletions.iter().map(|deletion| deletion.expired == ExpiredReceipt::Allow).collect();
    let values = [
        (&queue.as_str() as _, Type::TEXT),
        (&ids as _, Type::INT8_ARRAY),
        (&receipts as _, Type::BYTEA_ARRAY),
        (&late as _, Type::BOOL_ARRAY),
        (&lock_limit as _, Type::TEXT),
    ];
    let sql = if lock_limit.is_some() { DELETE_HELD } else { DELETE_FREE };
    let rows = database.query(call, sql, &values).await?;
    let (mut gone, mut advances) = (HashSet::with_capacity(rows.len()), false);
    for row in &rows {
        gone.extend(Presented::stored(call.get(row, 0)?, call.get(row, 1)?));
        advances |= call.get::<bool>(row, 2)?;
    }
    Ok((gone, advances))
}

/// Changes a message that no other transaction has locked. Returns whether it becomes visible earlier than it would have.
pub(super) async fn update(
    store: &Store,
    queue: &QueueName,
    message: &MessageRef,
    change: &UpdateMessage,
) -> Result<(Updated, bool), StoreError> {
    let call = Call::new(Operation::Update, queue);
    let update = Update::new(queue, message, change, &store.runtime);
    let values = update.values();
    let rows = store.database.query(call, UPDATE_FREE, &values.each_ref().map(Value::parameter)).await?;
    if let Some(updated) = update.outcome(call, &call.numbers(&rows)?)? {
        return Ok(updated);
    }
    let (refused, visibility) = ([update.offered], Some(update.visibility));
    let reason = reasons(&store.database, call, queue, &refused, visibility).await.pop().flatten();
    Err(reason.unwrap_or_else(|| {
        let detail = "an open transaction has changed the message; it decides when it ends";
        call.refuse(StoreErrorKind::Timeout).with_detail(detail)
    }))
}

/// Returns why receipts were refused, as far as there is a reason now. `visibility` is that of an update.
async fn reasons(
    database: &Database,
    call: Call<'_>,
    queue: &QueueName,
    refused: &[ReceiptUse],
    visibility: Option<i64>,
) -> Vec<Option<StoreError>> {
    if refused.is_empty() {
        return Vec::new();
    }
    let look = Look::new(queue, refused);
    let rows = database.query(call, LOOK, &look.values()).await;
    match rows.and_then(|rows| call.numbers(&rows)) {
        Ok(rows) => rows.iter().map(|row| reason(call, queue, row, visibility)).collect(),
        // Nothing was changed: the failure of this look is certain.
        Err(error) => error.with_ambiguous(false).for_each(refused.len()).map(Some).collect(),
    }
}
