//! The connections beside those of operations: of the renewer, and of leaders, records and the journal.

use std::time::Duration;

use futures_util::future::join_all;
use jobqueue::leader::Leader;
use jobqueue::postgres::Options;
use jobqueue::storage::{ExpiredReceipt, MessageRef, PutMessage, StoreError, StoreErrorKind, UpdateMessage};
use jobqueue::{JobError, QueueMessage, QueueName, Storage, Worker};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::jobs::{Task, task};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::{LONG, connect, get, named_with_limit, own_schema, put, wait_for_waiting, with_queue, within};

/// The operations have all connections that the server grants to the role of the process.
#[tokio::test]
async fn lease_is_renewed_while_the_server_has_no_connection_left() {
    let (_, schema) = own_schema();
    let (client, role) = (connect(Postgres::shared()).await, format!("role_{schema}"));
    let statements = format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA {schema} AUTHORIZATION {role}");
    client.batch_execute(&statements).await.unwrap();
    let text = Postgres::shared().connection_string().replace("//postgres@", &format!("//{role}@"));
    let options = Options::from_connection_string(&text).unwrap().schema(&schema);
    let (storage, queue) = with_queue(options.listen(false)).await;
    put(&storage, &queue, "text").await;
    let leased = get(&storage, &queue, 1).await.remove(0);
    client.batch_execute(&format!("ALTER ROLE {role} CONNECTION LIMIT 1")).await.unwrap();
    let renewer = storage.detached();
    renewer.queues().update(&queue, &leased.message, UpdateMessage::new(LONG)).await.unwrap();
}

/// Puts so many messages and leases them.
async fn leased(storage: &Storage, queue: &QueueName, count: usize) -> Vec<MessageRef> {
    let puts = (0..count).map(|n| PutMessage::new(n.to_string())).collect();
    storage.queues().put_all(queue, puts).await.into_iter().for_each(|put| drop(put.unwrap()));
    let mut leased = Vec::new();
    while leased.len() < count {
        leased.extend(get(storage, queue, 32).await.into_iter().map(|leased| leased.message));
    }
    leased
}

/// The leases of jobs that began at one moment, as after a deployment, are due together. A commit may take
/// 100 ms.
#[tokio::test]
async fn renewals_that_are_due_together_share_their_commits() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let renewer = storage.detached();
    let leased = leased(&storage, &queue, 100).await;
    // Those of messages near their end are cut to the millisecond.
    let lengths = (0..).map(|millis| LONG + Duration::from_millis(millis));
    let renewals = leased
        .iter()
        .zip(lengths)
        .map(|(leased, length)| renewer.queues().update(&queue, leased, UpdateMessage::new(length)));
    let renewed: Vec<_> = join_all(renewals).await.into_iter().map(Result::unwrap).collect();
    let transactions = format!("SELECT count(DISTINCT xmin::text) FROM {schema}.message");
    let row = connect(Postgres::shared()).await.query_one(&transactions, &[]).await.unwrap();
    assert!(row.get::<_, i64>(0) <= 4, "{} commits", row.get::<_, i64>(0));
    // Each lease has the receipt of its own message.
    for (leased, renewed) in leased.iter().zip(renewed) {
        let newest = MessageRef { receipt: renewed.receipt, ..leased.clone() };
        storage.queues().delete(&queue, &newest, ExpiredReceipt::Refuse).await.unwrap();
    }
}

#[tokio::test]
async fn renewal_that_is_refused_or_held_up_fails_no_other() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let leased = leased(&storage, &queue, 4).await;
    let renew = |message| storage.queues().update(&queue, message, UpdateMessage::new(LONG));
    renew(&leased[0]).await.unwrap();
    let mut locking = connect(Postgres::shared()).await;
    let lock = locking.transaction().await.unwrap();
    let select = format!("SELECT FROM {schema}.message WHERE id = $1 FOR UPDATE");
    lock.execute(&select, &[&leased[1].id.as_str().parse::<i64>().unwrap()]).await.unwrap();
    let renewals = [0, 1, 2, 2, 3].map(|place: usize| renew(&leased[place]));
    let renewed = join_all(renewals).await;
    let kinds: Vec<_> = renewed.iter().map(|one| one.as_ref().err().map(StoreError::kind)).collect();
    let (refused, held_up) = (Some(StoreErrorKind::PopReceiptMismatch), Some(StoreErrorKind::Timeout));
    assert_eq!(kinds, [refused, held_up, None, refused, None]);
    assert!(renewed.into_iter().filter_map(Result::err).all(|error| !error.is_ambiguous()));
}

/// A lease gives up a renewal after a part of its time, while a lock of the table may last for longer.
#[tokio::test]
async fn renewals_that_are_given_up_are_not_made_later() {
    let (storage, queue, schema) = named_with_limit(LONG).await;
    let leased = leased(&storage, &queue, 3).await;
    let (mut locking, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let lock = locking.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {schema}.message")).await.unwrap();
    let renewals =
        || leased.iter().map(|leased| storage.queues().update(&queue, leased, UpdateMessage::new(LONG)));
    let mut given_up = Box::pin(join_all(renewals()));
    tokio::select! {
        _ = &mut given_up => panic!("the table is locked"),
        () = wait_for_waiting(&client, &schema, 1) => drop(given_up),
    }
    let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = $1";
    within(async { while !client.query(waiting, &[&schema]).await.unwrap().is_empty() {} }).await;
    lock.rollback().await.unwrap();
    join_all(renewals()).await.into_iter().for_each(|renewed| drop(renewed.unwrap()));
}

/// A caller with a longer lease waits on. A statement for all would be made for it, and leave receipts that
/// the other leases do not have.
// review 24, databases C1
#[tokio::test]
async fn renewals_that_are_given_up_are_not_made_with_that_of_a_longer_lease() {
    let (storage, queue, schema) = named_with_limit(LONG).await;
    let leased = leased(&storage, &queue, 3).await;
    let (mut locking, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let lock = locking.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {schema}.message")).await.unwrap();
    let renew =
        |place: usize, length| storage.queues().update(&queue, &leased[place], UpdateMessage::new(length));
    let mut longer = Box::pin(renew(2, 2 * LONG));
    let mut given_up = Box::pin(join_all([renew(0, LONG), renew(1, LONG)]));
    tokio::select! {
        biased;
        _ = &mut longer => panic!("the table is locked"),
        _ = &mut given_up => panic!("the table is locked"),
        () = wait_for_waiting(&client, &schema, 2) => drop(given_up),
    }
    let waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = $1";
    within(async { while client.query(waiting, &[&schema]).await.unwrap().len() > 1 {} }).await;
    lock.rollback().await.unwrap();
    longer.await.unwrap();
    for place in 0..2 {
        renew(place, LONG).await.unwrap();
    }
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "others", kind = "other")]
struct Other {
    #[message(key)]
    name: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "third", kind = "third")]
struct Third {
    #[message(key)]
    name: String,
}

/// As while an operator makes an index: the appends of three workers wait for it, each on a connection, and
/// leave a leader its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_on_the_journal_holds_up_no_leader() {
    let (storage, _, schema) = named_with_limit(LONG).await;
    // More than what the journals of the workers keep in memory before they write.
    let names = (0..1_500).map(|n| format!("{n:01000}"));
    let tasks: Vec<Task> = names.clone().map(task).collect();
    let others: Vec<Other> = names.clone().map(|name| Other { name }).collect();
    let thirds: Vec<Third> = names.map(|name| Third { name }).collect();
    storage.queue().await.unwrap().send_all(&tasks).await.unwrap().into_result().unwrap();
    storage.queue().await.unwrap().send_all(&others).await.unwrap().into_result().unwrap();
    storage.queue().await.unwrap().send_all(&thirds).await.unwrap().into_result().unwrap();
    let (mut open, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let index = open.transaction().await.unwrap();
    index.batch_execute(&format!("LOCK TABLE {schema}.journal IN SHARE MODE")).await.unwrap();

    let builder = || Worker::builder(storage.clone()).history(Duration::from_secs(3_600)).presence(None);
    let of_tasks = builder().handle(async |_: Task| Ok::<_, JobError>(())).build().unwrap();
    let of_others = builder().handle(async |_: Other| Ok::<_, JobError>(())).build().unwrap();
    let of_thirds = builder().handle(async |_: Third| Ok::<_, JobError>(())).build().unwrap();
    let mut workers = JoinSet::new();
    workers.spawn(of_tasks.run_until(std::future::pending::<()>()));
    workers.spawn(of_others.run_until(std::future::pending::<()>()));
    workers.spawn(of_thirds.run_until(std::future::pending::<()>()));
    let waiting = "SELECT count(*) FROM pg_locks WHERE relation = $1::text::regclass AND NOT granted";
    let journal = format!("{schema}.journal");
    let all_wait = async || client.query_one(waiting, &[&journal]).await.unwrap().get::<_, i64>(0) == 3;
    within(async { while !all_wait().await {} }).await;
    let leads = within(Leader::new(&storage, "one").unwrap().try_lead()).await.unwrap();
    assert!(leads.is_some());
}
