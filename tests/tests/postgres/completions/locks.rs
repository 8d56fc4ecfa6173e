//! A message that an open transaction has changed: it is locked until the transaction ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jobqueue::storage::{ExpiredReceipt, MessageRef, Operation, PutMessage, StoreErrorKind, UpdateMessage};
use jobqueue::{Context, Event, JobError, QueueMessage, Worker};
use jobqueue_postgres::update_in;
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::jobs::Task;
use serde::{Deserialize, Serialize};
use tokio::sync::{Barrier, Mutex, mpsc};
use tokio_util::sync::CancellationToken;

use super::Bench;
use crate::{
    LONG, connect, get, named, named_with_limit, options, put, texts, wait_for_waiting, with_queue, within,
};

/// The leases of these tests.
const LEASE: Duration = Duration::from_secs(5);

/// Returns a change that keeps the lease.
fn kept() -> UpdateMessage {
    UpdateMessage::new(LONG)
}

#[tokio::test]
async fn receipt_of_a_change_is_good_if_its_transaction_commits() {
    let (storage, queue, schema) = named().await;
    put(&storage, &queue, "text").await;
    let former = get(&storage, &queue, 1).await.remove(0).message;
    let mut client = connect(Postgres::shared()).await;
    for commits in [false, true] {
        let transaction = client.transaction().await.unwrap();
        let change = kept().with_text("changed".to_owned());
        let updated = update_in(&transaction, &schema, &queue, &former, &change).await.unwrap();
        let changed = MessageRef { receipt: updated.receipt, ..former.clone() };
        let again = update_in(&transaction, &schema, &queue, &former, &change).await.unwrap_err();
        assert_eq!(again.kind(), StoreErrorKind::PopReceiptMismatch, "{again}");
        if commits {
            transaction.commit().await.unwrap();
        } else {
            transaction.rollback().await.unwrap();
        }
        let (good, wrong) = if commits { (&changed, &former) } else { (&former, &changed) };
        let refused = storage.queues().delete(&queue, wrong, ExpiredReceipt::Refuse).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::PopReceiptMismatch, "{refused}");
        if commits {
            storage.queues().update(&queue, good, UpdateMessage::new(Duration::ZERO)).await.unwrap();
        }
    }
    assert_eq!(texts(&get(&storage, &queue, 1).await), ["changed"]);
}

/// Also one that hides the message for less time than before, as the completion of a job does that expires
/// soon.
#[tokio::test]
async fn transaction_of_a_change_that_keeps_the_lease_can_be_prepared() {
    let server = Postgres::start(&["max_prepared_transactions=1"]);
    let (storage, queue) = with_queue(options(&server)).await;
    put(&storage, &queue, "text").await;
    let message = get(&storage, &queue, 1).await.remove(0).message;
    let mut client = connect(&server).await;
    let transaction = client.transaction().await.unwrap();
    update_in(&transaction, "jobqueue", &queue, &message, &UpdateMessage::new(LONG / 2)).await.unwrap();
    transaction.batch_execute("PREPARE TRANSACTION 'change'").await.unwrap();
    drop(transaction);
    client.batch_execute("COMMIT PREPARED 'change'").await.unwrap();
    let former = storage.queues().delete(&queue, &message, ExpiredReceipt::Refuse).await.unwrap_err();
    assert_eq!(former.kind(), StoreErrorKind::PopReceiptMismatch, "{former}");
}

/// A wait for the transaction would take a connection that the renewals of other leases need.
#[tokio::test]
async fn change_of_a_message_that_an_open_transaction_has_changed_is_refused_at_once() {
    let (storage, queue, schema) = named_with_limit(Duration::from_secs(5)).await;
    put(&storage, &queue, "text").await;
    let message = get(&storage, &queue, 1).await.remove(0).message;
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    update_in(&transaction, &schema, &queue, &message, &kept()).await.unwrap();
    // A renewal, and a change of the text.
    for change in [kept(), kept().with_text("changed".to_owned())] {
        let held = within(storage.queues().update(&queue, &message, change)).await.unwrap_err();
        assert_eq!((held.kind(), held.is_ambiguous()), (StoreErrorKind::Timeout, false), "{held}");
        assert!(held.is_retryable() && !held.is_lease_lost(), "{held}");
        assert!(
            held.to_string().contains("an open transaction has changed the message"),
            "it waited: {held}"
        );
    }
    transaction.rollback().await.unwrap();
    storage.queues().update(&queue, &message, kept()).await.unwrap();
}

/// Two transactions change one message by one receipt, as one of the handler does while a renewal is under
/// way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn change_in_a_transaction_waits_for_another_one() {
    let (storage, queue, schema) = named().await;
    put(&storage, &queue, "text").await;
    let message = get(&storage, &queue, 1).await.remove(0).message;
    let (mut first, mut second) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    second.batch_execute(&format!("SET application_name = '{schema}'")).await.unwrap();
    for commits in [false, true] {
        let transaction = first.transaction().await.unwrap();
        update_in(&transaction, &schema, &queue, &message, &kept()).await.unwrap();
        let waiting = second.transaction().await.unwrap();
        let client = connect(Postgres::shared()).await;
        let change = kept();
        let (changed, ()) = tokio::join!(update_in(&waiting, &schema, &queue, &message, &change), async {
            wait_for_waiting(&client, &schema, 1).await;
            if commits {
                transaction.commit().await.unwrap();
            } else {
                transaction.rollback().await.unwrap();
            }
        });
        match changed {
            Ok(_) => assert!(!commits),
            Err(error) => {
                assert!(commits, "{error}");
                assert_eq!(error.kind(), StoreErrorKind::PopReceiptMismatch, "{error}");
            }
        }
        waiting.rollback().await.unwrap();
    }
}

#[tokio::test]
async fn only_a_good_receipt_changes_a_message_in_a_transaction() {
    let (storage, queue, schema) = named().await;
    let short = PutMessage::new("text").with_ttl(Some(Duration::from_secs(60)));
    storage.queues().put(&queue, short).await.unwrap();
    let lease = jobqueue::storage::GetMessages::new(1, Duration::from_secs(30));
    let message = storage.queues().get(&queue, lease).await.unwrap().messages.remove(0).message;
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    let beyond = update_in(&transaction, &schema, &queue, &message, &kept()).await.unwrap_err();
    assert_eq!(beyond.kind(), StoreErrorKind::InvalidInput, "it would be hidden beyond its life: {beyond}");
    let end = format!("UPDATE {schema}.message SET visible_at = {schema}.now() - 1");
    transaction.batch_execute(&end).await.unwrap();
    let change = UpdateMessage::new(Duration::from_secs(1));
    let over = update_in(&transaction, &schema, &queue, &message, &change).await.unwrap_err();
    assert_eq!(over.kind(), StoreErrorKind::LeaseExpired, "{over}");
    update_in(&transaction, &schema, &queue, &message, &change.with_expired(ExpiredReceipt::Allow))
        .await
        .unwrap();
    transaction.batch_execute(&format!("DELETE FROM {schema}.message")).await.unwrap();
    let gone = UpdateMessage::new(Duration::from_secs(1));
    let gone = update_in(&transaction, &schema, &queue, &message, &gone).await.unwrap_err();
    assert_eq!(gone.kind(), StoreErrorKind::MessageNotFound, "{gone}");
    transaction.rollback().await.unwrap();
}

/// The renewal finds the lock of the transaction, and later its receipt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_is_renewed_after_the_transaction() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let (reported, renewals) = mpsc::unbounded_channel();
    let renewals = Arc::new(Mutex::new(renewals));
    let listener = move |event: &Event| {
        let name = match event {
            Event::Renewed { .. } => "renewed",
            Event::NotRenewed { .. } => "not renewed",
            Event::LeaseLost { .. } => "lost",
            _ => return,
        };
        let _ = reported.send(name);
    };
    let place = bench.place.clone();
    let handler = move |_: Task, ctx: Context| {
        let (place, renewals) = (place.clone(), Arc::clone(&renewals));
        async move {
            let mut renewals = renewals.lock().await;
            let mut client = place.connect().await;
            let transaction = client.transaction().await.unwrap();
            ctx.complete_in_postgres(&transaction).await?;
            assert_eq!(within(renewals.recv()).await, Some("not renewed"));
            transaction.commit().await.unwrap();
            while within(renewals.recv()).await.expect("an event") != "renewed" {
                assert!(!ctx.is_cancelled());
            }
            Ok::<_, JobError>(())
        }
    };
    let worker = bench.worker_with(LEASE).on_event(listener).handle(handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.retried), (1, 0));
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "held", kind = "held", lease = "8s")]
struct Held {}

/// Its lease ends before renewals of the other kind are given up.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "others", kind = "other", lease = "3s")]
struct Other {}

/// More handlers than the renewer has connections complete their jobs and leave their transactions open,
/// until another lease was renewed after a renewal of each of theirs was refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_transactions_hold_up_no_renewal_of_another_lease() {
    const HELD: usize = 12;
    let bench = Bench::new().await;
    let (held, others) =
        (bench.storage.queue::<Held>().await.unwrap(), bench.storage.queue::<Other>().await.unwrap());
    let (reported, renewals) = mpsc::unbounded_channel();
    let renewals = Arc::new(Mutex::new(renewals));
    let listener = move |event: &Event| {
        let _ = match event {
            Event::NotRenewed { queue, .. } if queue.as_str() == "held" => reported.send(Renewal::Refused),
            Event::Renewed { queue, .. } if queue.as_str() == "others" => reported.send(Renewal::Succeeded),
            _ => return,
        };
    };
    let (begun, ends) = (Arc::new(Barrier::new(HELD)), CancellationToken::new());
    let (place, ended) = (bench.place.clone(), ends.clone());
    let hold = move |_: Held, ctx: Context| {
        let (place, ends, begun, others) = (place.clone(), ends.clone(), Arc::clone(&begun), others.clone());
        async move {
            let mut client = place.connect().await;
            let transaction = client.transaction().await.unwrap();
            ctx.complete_in_postgres(&transaction).await?;
            if begun.wait().await.is_leader() {
                others.send(&Other {}).await?;
            }
            ends.cancelled().await;
            transaction.commit().await.map_err(JobError::retry)
        }
    };
    let is_renewed = Arc::new(AtomicBool::new(false));
    let noted = Arc::clone(&is_renewed);
    let run = move |_: Other, ctx: Context| {
        let (renewals, noted, ended) = (Arc::clone(&renewals), Arc::clone(&noted), ended.clone());
        async move {
            if ended.is_cancelled() {
                // The lease of the first run was lost.
                return Ok(());
            }
            let renewed = ctx.token().run_until_cancelled(renewed_after(renewals, HELD)).await;
            noted.store(renewed.is_some(), Ordering::Relaxed);
            ended.cancel();
            Ok::<_, JobError>(())
        }
    };
    for _ in 0..HELD {
        held.send(&Held {}).await.unwrap();
    }
    let worker = bench.worker().concurrency(HELD + 1).on_event(listener);
    drop(worker.handle(hold).handle(run).build().unwrap().run_until_idle().await.unwrap());
    assert!(is_renewed.load(Ordering::Relaxed), "the lease of the other job was lost");
}

#[derive(PartialEq)]
enum Renewal {
    Refused,
    Succeeded,
}

/// Waits for a renewal that succeeded after so many were refused.
async fn renewed_after(renewals: Arc<Mutex<mpsc::UnboundedReceiver<Renewal>>>, mut refused: usize) {
    let mut renewals = renewals.lock().await;
    while let Some(renewal) = renewals.recv().await {
        if refused == 0 && renewal == Renewal::Succeeded {
            return;
        }
        refused = refused.saturating_sub(usize::from(renewal == Renewal::Refused));
    }
}

/// A task of the handler ends the transaction while the worker asks whether it has committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_is_done_although_its_transaction_commits_after_its_handler() {
    let bench = Bench::new().await;
    bench.send("a").await;
    let (asked, asks) = mpsc::unbounded_channel();
    let storage = bench.storage.clone().on_event(move |event| {
        if let Event::StorageRequest { operation, error: Some(_), .. } = event
            && *operation == Operation::Update.as_str()
        {
            let _ = asked.send(());
        }
    });
    let (place, asks) = (bench.place.clone(), Arc::new(Mutex::new(asks)));
    let handler = move |_: Task, ctx: Context| {
        let (place, asks) = (place.clone(), Arc::clone(&asks));
        async move {
            let (completed, is_completed) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                let mut client = place.connect().await;
                let transaction = client.transaction().await.unwrap();
                ctx.complete_in_postgres(&transaction).await.unwrap();
                completed.send(()).unwrap();
                for _ in 0..2 {
                    within(asks.lock().await.recv()).await.unwrap();
                }
                transaction.commit().await.unwrap();
            });
            is_completed.await.map_err(JobError::retry)
        }
    };
    let report = Worker::builder(storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.retried), (1, 0));
}
