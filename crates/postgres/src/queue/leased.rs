//! Changes and deletes messages by their receipts.

use std::collections::HashSet;

use tokio_postgres::types::Type;

use super::refusal::{INSPECT, Inspection, reason};
use super::renew::renew;
use super::update::{UPDATE_FREE, Update};
use crate::database::{Call, Database};
use crate::driver::Value;
use crate::error;
use crate::receipt::{Presented, ReceiptUse};
use crate::store::Store;
use jobqueue_storage::{
    ExpiredReceipt, MessageRef, Operation, QueueName, StoreError, StoreErrorKind, UpdateMessage, Updated,
};

/// Deletes messages whose receipts are valid. $4 says which expired receipts are accepted.
const DELETE: &str = "SELECT * FROM jobqueue.delete_rows($1, $2, $3, $4, $5)";
/// Ends messages that are the first of groups to which open transactions are adding messages.
const PASS_ON: &str = "SELECT * FROM jobqueue.pass_on_rows($1, $2, $3, $4, $5)";
/// Removes the rows of former first messages, in these messages' groups, that no transaction locks any more.
/// The statement has no join by `id`, and no condition that matches a partial index: where the statistics say
/// that the table is empty, the planner could read all of an index.
const REMOVE_FORMER: &str = "DELETE FROM jobqueue.message WHERE id = ANY (ARRAY(
        SELECT f.id FROM jobqueue.queue q, jobqueue.message m,
            LATERAL (SELECT id FROM jobqueue.message
                WHERE queue = m.queue AND group_hash = m.group_hash AND waiting AND turn IS NULL
                OFFSET 0 FOR UPDATE SKIP LOCKED) f
        WHERE q.name = $1 AND m.id = ANY ($2) AND m.queue + 0 = q.id AND m.waiting::integer = 0)) RETURNING id";

/// The answers to deletions, in their order.
pub(super) struct Deleted {
    /// The answer of each deletion; `None` if another transaction holds it up.
    pub(super) answers: Vec<Option<Result<(), StoreError>>>,
    /// True if a message of a group was deleted, so that the next message of the group may be visible now.
    pub(super) advances: bool,
}

/// Deletes the messages of a queue that no other transaction holds up. If the next message of a group is
/// locked, each half of the list is deleted separately.
pub(super) async fn delete(
    database: &Database,
    call: Call<'_>,
    queue: &QueueName,
    deletions: &[ReceiptUse],
    lock_limit: &str,
) -> Deleted {
    let run = |sql, deletions| end_messages(database, call, queue, deletions, sql, lock_limit);
    let ended = run(DELETE, deletions).await;
    if deletions.len() > 1 && ended.as_ref().is_err_and(error::is_lock_timeout) {
        let (first, second) = deletions.split_at(deletions.len() / 2);
        let mut deleted = Box::pin(delete(database, call, queue, first, lock_limit)).await;
        let others = Box::pin(delete(database, call, queue, second, lock_limit)).await;
        deleted.answers.extend(others.answers);
        deleted.advances |= others.advances;
        return deleted;
    }
    let mut deleted = Deleted { answers: deletions.iter().map(|_| None).collect(), advances: false };
    deleted.note(deletions, ended);
    let unanswered = deleted.unanswered(deletions);
    if !unanswered.is_empty() {
        deleted.note(deletions, run(PASS_ON, &unanswered).await);
    }
    let unanswered = deleted.unanswered(deletions);
    if remove_former(database, call, queue, &unanswered).await {
        deleted.note(deletions, run(DELETE, &unanswered).await);
    }
    // A refusal without a reason means that another transaction holds the message up.
    let reasons = reasons(database, call, queue, &deleted.unanswered(deletions), None).await;
    let open = deleted.answers.iter_mut().filter(|answer| answer.is_none());
    for (answer, reason) in open.zip(reasons) {
        *answer = reason.map(Err);
    }
    deleted
}

impl Deleted {
    /// Returns the deletions without an answer.
    fn unanswered(&self, deletions: &[ReceiptUse]) -> Vec<ReceiptUse> {
        let unanswered = self.answers.iter().zip(deletions).filter(|(answer, _)| answer.is_none());
        unanswered.map(|(_, deletion)| *deletion).collect()
    }

    /// Records the result of a statement. Of two deletions under the same receipt, the second gets no answer
    /// here. A statement that timed out on a lock has changed nothing.
    fn note(&mut self, deletions: &[ReceiptUse], ended: Result<(HashSet<Presented>, bool), StoreError>) {
        let open = self.answers.iter_mut().zip(deletions).filter(|(answer, _)| answer.is_none());
        match ended {
            Ok((mut gone, advances)) => {
                self.advances |= advances;
                for (answer, deletion) in open {
                    *answer = gone.remove(&deletion.presented).then_some(Ok(()));
                }
            }
            Err(error) if error::is_lock_timeout(&error) => {}
            Err(error) => {
                self.advances = true;
                for ((answer, _), error) in open.zip(error.for_each(deletions.len())) {
                    *answer = Some(Err(error));
                }
            }
        }
    }
}

/// Ends messages by a statement whose waits for locks are limited. Returns the messages that it ended, and
/// whether a group advances.
#[allow(clippy::too_many_arguments, reason = "the statement, its receipts and its limit")]
async fn end_messages(
    database: &Database,
    call: Call<'_>,
    queue: &QueueName,
    deletions: &[ReceiptUse],
    sql: &'static str,
    lock_limit: &str,
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
    let rows = database.query(call, sql, &values).await?;
    let (mut gone, mut advances) = (HashSet::with_capacity(rows.len()), false);
    for row in &rows {
        gone.extend(Presented::stored(call.get(row, 0)?, call.get(row, 1)?));
        advances |= call.get::<bool>(row, 2)?;
    }
    Ok((gone, advances))
}

/// Removes the rows of former first messages in these messages' groups. Returns whether it removed any.
async fn remove_former(
    database: &Database,
    call: Call<'_>,
    queue: &QueueName,
    deletions: &[ReceiptUse],
) -> bool {
    if deletions.is_empty() {
        return false;
    }
    let ids: Vec<i64> = deletions.iter().map(|deletion| deletion.presented.row).collect();
    let values = [(&queue.as_str() as _, Type::TEXT), (&ids as _, Type::INT8_ARRAY)];
    // A failure leaves the messages unchanged, so it counts as nothing removed.
    database.query(call, REMOVE_FORMER, &values).await.is_ok_and(|removed| !removed.is_empty())
}

/// Changes a message that no other transaction has locked. Also returns whether the message becomes visible
/// earlier than before the change.
pub(super) async fn update(
    store: &Store,
    queue: &QueueName,
    message: &MessageRef,
    change: &UpdateMessage,
) -> Result<(Updated, bool), StoreError> {
    let call = Call::new(Operation::Update, queue);
    let update = Update::new(queue, message, change, &store.runtime);
    let updated = if update.is_renewal() {
        renew(store, queue, &update).await?
    } else {
        // Many messages may be put back at once, for example when a task that holds them is cancelled. The
        // permit leaves the other connections to renewals.
        let _permit = if change.ends_lease { store.releases.acquire().await.ok() } else { None };
        let values = update.values();
        let rows = store.database.query(call, UPDATE_FREE, &values.each_ref().map(Value::parameter)).await?;
        update.outcome(call, &call.numbers(&rows)?)?
    };
    if let Some(updated) = updated {
        return Ok(updated);
    }
    let (refused, visibility) = ([update.offered], Some(update.visibility));
    let reason = reasons(&store.database, call, queue, &refused, visibility).await.pop().flatten();
    Err(reason.unwrap_or_else(|| {
        let detail = "an open transaction has changed the message; it decides when it ends";
        call.refuse(StoreErrorKind::Timeout).with_detail(detail)
    }))
}

/// Returns why each receipt was refused, or `None` if there is no reason now. `visibility` is the new
/// visibility of an update.
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
    let inspection = Inspection::new(queue, refused);
    let rows = database.query(call, INSPECT, &inspection.values()).await;
    match rows.and_then(|rows| call.numbers(&rows)) {
        Ok(rows) => rows.iter().map(|row| reason(call, queue, row, visibility)).collect(),
        // This query changes nothing, so its failure is certain.
        Err(error) => error.with_ambiguous(false).for_each(refused.len()).map(Some).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::arrivals::ArrivalHub;
    use crate::fake_server::FakeServer;
    use jobqueue_storage::runtime::Runtime;
    use jobqueue_storage::{MessageId, PopReceipt};

    #[tokio::test]
    async fn messages_that_are_put_back_leave_a_connection_to_renewals() {
        let (server, mut arrived) = FakeServer::silent().await;
        let runtime = Runtime::new();
        let database = Arc::new(Database::new(server.settings(), runtime.clone()).unwrap());
        let (hub, _closed) = ArrivalHub::new("jobqueue", &runtime);
        let renewer = Store::new(database, runtime, Arc::new(hub)).with_own_connections();
        let (queue, message) = (
            "jobs".parse().unwrap(),
            MessageRef { id: MessageId::new("id"), receipt: PopReceipt::new("receipt") },
        );
        let renewal = UpdateMessage::new(Duration::from_secs(30));
        let mut back = UpdateMessage::new(Duration::ZERO);
        back.ends_lease = true;
        let release = || update(&renewer, &queue, &message, &back);
        let other = async {
            arrived.recv().await.unwrap();
            let mut renewal = pin!(update(&renewer, &queue, &message, &renewal));
            tokio::select! {
                _ = &mut renewal => panic!("there is no answer"),
                _ = arrived.recv() => {}
            }
            for _ in 0..100 {
                tokio::select! {
                    biased;
                    _ = &mut renewal => panic!("there is no answer"),
                    () = tokio::task::yield_now() => {}
                }
                assert_eq!(renewer.database.waiting(), 0, "the second release has the other connection");
            }
        };
        tokio::select! {
            _ = release() => panic!("there is no answer"),
            _ = release() => panic!("there is no answer"),
            () = other => {}
        }
    }
}
