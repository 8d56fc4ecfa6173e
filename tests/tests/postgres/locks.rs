//! Locks of groups: the operations that wait for those of open transactions, and of each other.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::postgres::tokio_postgres::{Client, Transaction};
use jobqueue::storage::{ExpiredReceipt, MessageRef, PutMessage, Storage, StoreErrorKind};
use jobqueue::{Event, JobError, QueueName, Worker};
use jobqueue_tests::jobs::{Task, task};
use tokio::sync::mpsc::unbounded_channel;
use tokio::sync::{Semaphore, SemaphorePermit, oneshot};
use tokio::task::JoinHandle;

use crate::{
    connect, get, named, named_with_limit, of_group, options, own_schema, texts, wait_for_waiting,
    with_queue, within,
};
use jobqueue_test_support::postgres::Postgres;

async fn finished<T>(task: &JoinHandle<T>) {
    while !task.is_finished() {
        tokio::task::yield_now().await;
    }
}

/// Puts a message into a group within a transaction that stays open.
pub(crate) async fn put_row(transaction: &Transaction<'_>, schema: &str, group: &str) {
    transaction.batch_execute(&put_row_of(schema, group)).await.unwrap();
}

pub(crate) fn put_row_of(schema: &str, group: &str) -> String {
    format!("SELECT {schema}.put_row(1, substr(sha256('{group}'), 1, 16), '\\x00', 0, NULL, 'open')")
}

fn put_all(storage: &Storage, queue: &QueueName, groups: &str) -> JoinHandle<usize> {
    let messages: Vec<PutMessage> =
        groups.chars().map(|group| of_group("text", &group.to_string())).collect();
    let (storage, queue) = (storage.clone(), queue.clone());
    tokio::spawn(async move {
        let put = storage.queues().put_all(&queue, messages.into()).await;
        put.into_iter().map(Result::unwrap).count()
    })
}

/// Puts the first message of each group, and receives it.
pub(crate) async fn heads(storage: &Storage, queue: &QueueName, groups: &[&str]) -> Vec<MessageRef> {
    let mut heads = Vec::new();
    for group in groups {
        storage.queues().put(queue, of_group(*group, group)).await.unwrap();
        let mut found = get(storage, queue, 1).await;
        assert_eq!(texts(&found), [*group]);
        heads.push(found.remove(0).message);
    }
    heads
}

/// Two lists put the first messages of the same groups, and wait in the middle for a third transaction.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_with_the_same_groups_do_not_block_each_other() {
    let (storage, queue, schema) = named().await;
    let (mut open, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "b").await;
    let lists = [put_all(&storage, &queue, "acbde"), put_all(&storage, &queue, "edbca")];
    wait_for_waiting(&client, &schema, 2).await;
    transaction.commit().await.unwrap();
    for list in lists {
        assert_eq!(within(list).await.unwrap(), 5);
    }
}

/// Each group has a transaction that locks its first message for longer than a brief attempt waits, as a
/// deletion does until its commit is replicated, and soon another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_goes_through_although_its_groups_are_locked_again_and_again() {
    let (storage, queue, schema) = named().await;
    let client = connect(Postgres::shared()).await;
    let mut holders = tokio::task::JoinSet::new();
    for head in heads(&storage, &queue, &["a", "b", "c", "d", "e", "f", "g", "h"]).await {
        let holder = connect(Postgres::shared()).await;
        let lock = format!("SELECT FROM {schema}.message WHERE id = {} FOR UPDATE", head.id.as_str());
        let hold = format!("BEGIN; {lock}; SELECT pg_sleep(0.2); COMMIT");
        holders.spawn(async move { while holder.batch_execute(&hold).await.is_ok() {} });
    }
    let holding = format!(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep' AND query LIKE '%{schema}.message%'"
    );
    within(async {
        while client.query_one(&holding, &[]).await.unwrap().get::<_, i64>(0) < 8 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!(within(put_all(&storage, &queue, "abcdefgh")).await.unwrap(), 8);
}

/// The application sends into two groups while a worker completes the first of both.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletions_do_not_block_a_transaction_that_sends_into_their_groups() {
    let (storage, queue, schema) = named().await;
    let (mut open, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let heads = heads(&storage, &queue, &["a", "b"]).await;
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "b").await;
    let deletion = tokio::spawn({
        let (storage, queue, heads) = (storage.clone(), queue.clone(), heads.clone());
        async move { storage.queues().delete_all(&queue, heads, ExpiredReceipt::Refuse).await }
    });
    let waiting = wait_for_waiting(&client, &schema, 1);
    tokio::select! { () = waiting => {} () = finished(&deletion) => {} }
    put_row(&transaction, &schema, "a").await;
    transaction.commit().await.unwrap();
    assert!(within(deletion).await.unwrap()[0].is_ok());
    let again = storage.queues().delete(&queue, &heads[1], ExpiredReceipt::Refuse).await;
    assert!(again.err().is_none_or(|error| error.kind() == StoreErrorKind::MessageNotFound));
    let next = get(&storage, &queue, 32).await;
    assert_eq!(texts(&next), ["open", "open"], "the next of both groups");
}

/// A worker deletes the messages of jobs that end at about the same time by one request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_transaction_delays_only_the_deletion_of_the_first_of_its_group() {
    let (storage, queue, schema) = named().await;
    let (mut open, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let heads = heads(&storage, &queue, &["a", "b"]).await;
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "a").await;
    let deleted = tokio::select! {
        deleted = storage.queues().delete_all(&queue, heads.clone(), ExpiredReceipt::Refuse) => deleted,
        () = wait_for_waiting(&client, &schema, 1) => panic!("a list does not wait"),
    };
    let held = deleted[0].as_ref().unwrap_err();
    assert_eq!((held.kind(), held.is_ambiguous()), (StoreErrorKind::Timeout, false), "{held}");
    assert!(held.is_retryable(), "{held}");
    deleted[1].as_ref().unwrap();
    let alone = tokio::spawn({
        let (storage, queue) = (storage.clone(), queue.clone());
        async move { storage.queues().delete(&queue, &heads[0], ExpiredReceipt::Refuse).await }
    });
    transaction.commit().await.unwrap();
    within(alone).await.unwrap().unwrap();
}

/// The first message of a group is not committed: further ones cannot know whether they are the first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn open_transaction_delays_only_the_sends_of_its_group() {
    let (storage, queue, schema) = named().await;
    let (mut open, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "a").await;
    let send = |group: Option<&str>| {
        let message = PutMessage::new("sent").with_group(group.map(str::to_owned));
        let (storage, queue) = (storage.clone(), queue.clone());
        tokio::spawn(async move { storage.queues().put(&queue, message).await })
    };
    let mut held = Vec::new();
    for count in 1..=2 {
        held.push(send(Some("a")));
        wait_for_waiting(&client, &schema, count).await;
    }
    within(send(None)).await.unwrap().unwrap();
    within(send(Some("b"))).await.unwrap().unwrap();
    transaction.commit().await.unwrap();
    for put in held {
        within(put).await.unwrap().unwrap();
    }
}

/// Many sends of one group are held up. One of another group shares a list with them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn number_of_sends_that_are_held_up_does_not_matter_to_other_groups() {
    let (_, schema) = own_schema();
    let options = options(Postgres::shared()).schema(&schema).timeout(Duration::from_secs(5));
    let (storage, queue) = with_queue(options).await;
    let mut open = connect(Postgres::shared()).await;
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "a").await;
    let mut held = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let (storage, queue) = (storage.clone(), queue.clone());
        held.spawn(async move { storage.queues().put(&queue, of_group("held", "a")).await });
    }
    for group in ["b", "c", "d", "e"] {
        storage.queues().put(&queue, of_group("sent", group)).await.unwrap();
    }
    transaction.commit().await.unwrap();
    within(held.join_all()).await;
}

/// A list locks its groups one after the other. While it is held up, a worker completes the first of a group
/// that it has locked.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_that_is_held_up_leaves_its_other_groups_free() {
    let (storage, queue, schema) = named_with_limit(Duration::from_secs(5)).await;
    let (mut open, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let heads = heads(&storage, &queue, &["b"]).await;
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "a").await;
    let list = tokio::spawn({
        let (storage, queue) = (storage.clone(), queue.clone());
        let messages = [of_group("held", "a"), of_group("text", "b")];
        async move { storage.queues().put_all(&queue, messages.into()).await }
    });
    wait_for_waiting(&client, &schema, 1).await;
    storage.queues().delete(&queue, &heads[0], ExpiredReceipt::Refuse).await.unwrap();
    assert!(!list.is_finished(), "it is still held up");
    for put in within(list).await.unwrap() {
        let error = put.unwrap_err();
        assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, false), "{error}");
    }
    transaction.commit().await.unwrap();
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 1);
}

/// An import sends in order for many customers in one transaction, while other processes send for the same
/// customers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_into_many_groups_that_are_held_up_end_in_time_and_delay_no_others() {
    let (storage, queue, schema) = named_with_limit(Duration::from_secs(5)).await;
    let mut open = connect(Postgres::shared()).await;
    let transaction = open.transaction().await.unwrap();
    let mut held = tokio::task::JoinSet::new();
    for number in 0..200 {
        put_row(&transaction, &schema, &number.to_string()).await;
    }
    for number in 0..200 {
        let (storage, queue) = (storage.clone(), queue.clone());
        let put = async move { storage.queues().put(&queue, of_group("held", &number.to_string())).await };
        held.spawn(put);
    }
    storage.queues().put(&queue, of_group("sent", "free")).await.unwrap();
    assert!(held.try_join_next().is_none(), "the others are still held up");
    let ended = tokio::time::timeout(Duration::from_secs(15), held.join_all()).await;
    for put in ended.expect("a limit of the time") {
        let error = put.unwrap_err();
        assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, false), "{error}");
    }
    transaction.rollback().await.unwrap();
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 1);
}

/// Waits until no more than three sessions of this name wait for a lock, for some looks in a row.
async fn wait_until_few_wait(client: &Client, name: &str) {
    let waiting =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = $1";
    let mut looks = 0;
    within(async {
        while looks < 20 {
            let count: i64 = client.query_one(waiting, &[&name]).await.unwrap().get(0);
            looks = if count > 3 { 0 } else { looks + 1 };
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// An import holds up many groups, and the transaction of an order two others. This one ends, while that one
/// goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_that_are_held_up_go_through_when_their_transaction_ends() {
    let (storage, queue, schema) = named_with_limit(Duration::from_secs(20)).await;
    let (mut importing, mut ordering) =
        (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let client = connect(Postgres::shared()).await;
    let (import, order) = (importing.transaction().await.unwrap(), ordering.transaction().await.unwrap());
    for group in ["x", "y"] {
        put_row(&order, &schema, group).await;
    }
    let mut held = tokio::task::JoinSet::new();
    for number in 0..100 {
        put_row(&import, &schema, &number.to_string()).await;
        let (storage, queue) = (storage.clone(), queue.clone());
        held.spawn(async move { storage.queues().put(&queue, of_group("held", &number.to_string())).await });
    }
    wait_for_waiting(&client, &schema, 4).await;
    wait_until_few_wait(&client, &schema).await;
    let lists = [put_all(&storage, &queue, "x"), put_all(&storage, &queue, "yz")];
    let single = tokio::spawn({
        let (storage, queue) = (storage.clone(), queue.clone());
        async move { storage.queues().put(&queue, of_group("sent", "x")).await }
    });
    wait_for_waiting(&client, &schema, 4).await;
    wait_until_few_wait(&client, &schema).await;
    order.commit().await.unwrap();
    for list in lists {
        list.await.unwrap();
    }
    single.await.unwrap().unwrap();
    import.commit().await.unwrap();
    for put in within(held.join_all()).await {
        put.unwrap();
    }
}

/// Two keys are held up, one after the other, so that each list with such a completion would keep one of the
/// two requests of the worker.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn completions_that_are_held_up_delay_no_others() {
    let storage = named().await.0;
    let queue = storage.queue::<Task>().await.unwrap();
    let mut open = connect(Postgres::shared()).await;
    let (ends, mut ended) = unbounded_channel();
    let listen = move |event: &Event| {
        if let Event::Finished { job: Some(job), .. } = event {
            let _ = ends.send(job.id.to_string());
        }
    };
    let go = Arc::new(Semaphore::new(0));
    let (gate, (runs, mut run)) = (Arc::clone(&go), unbounded_channel());
    let handler = move |_: Task| {
        let (gate, runs) = (Arc::clone(&gate), runs.clone());
        async move {
            gate.acquire().await.map(SemaphorePermit::forget).map_err(JobError::retry)?;
            runs.send(()).map_err(JobError::retry)
        }
    };
    let worker = Worker::builder(storage).handle(handler).on_event(listen).build().unwrap();
    let (stop, stopped) = oneshot::channel::<()>();
    let running = tokio::spawn(worker.run_until(async { drop(stopped.await) }));
    let transaction = open.transaction().await.unwrap();
    for key in ["a", "b"] {
        queue.send(&task(key)).in_order().await.unwrap();
        queue.send(&task(key)).in_order().in_postgres(&transaction).await.unwrap();
        go.add_permits(1);
        within(run.recv()).await.unwrap();
    }
    queue.send(&task("free")).id("free").await.unwrap();
    go.add_permits(3);
    assert_eq!(within(ended.recv()).await.unwrap(), "free");
    transaction.commit().await.unwrap();
    for _ in 0..4 {
        within(ended.recv()).await.unwrap();
    }
    stop.send(()).unwrap();
    assert_eq!(running.await.unwrap().unwrap().completed, 5);
}

/// An operator clears a queue with a message that an application holds.
#[tokio::test]
async fn clear_that_an_open_transaction_holds_up_fails_certainly() {
    let (storage, queue, schema) = named_with_limit(Duration::from_secs(2)).await;
    heads(&storage, &queue, &["a", "b"]).await;
    let mut open = connect(Postgres::shared()).await;
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "a").await;
    let error = storage.queues().clear(&queue).await.unwrap_err();
    assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, false), "{error}");
    transaction.commit().await.unwrap();
    storage.queues().clear(&queue).await.unwrap();
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 0);
}

/// Nothing is stored for a send that is held up for longer than an operation may take.
#[tokio::test]
async fn send_that_an_open_transaction_holds_up_fails_certainly() {
    let (_, schema) = own_schema();
    let options = options(Postgres::shared()).schema(&schema).timeout(Duration::from_secs(2));
    let (storage, queue) = with_queue(options).await;
    let mut open = connect(Postgres::shared()).await;
    let transaction = open.transaction().await.unwrap();
    put_row(&transaction, &schema, "a").await;
    let error = storage.queues().put(&queue, of_group("held", "a")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, false), "{error}");
    transaction.commit().await.unwrap();
    assert_eq!(storage.queues().queue_properties(&queue).await.unwrap().approximate_count, 1);
}

/// The caller gives up while the server waits: the deletion is made all the same, and those that wait for the
/// next message of the group are notified.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deletion_without_a_caller_announces_the_next_of_its_group() {
    let (storage, queue, schema) = named().await;
    let (mut open, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let heads = heads(&storage, &queue, &["a"]).await;
    storage.queues().put(&queue, of_group("next", "a")).await.unwrap();
    let lock = open.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {schema}.message")).await.unwrap();
    let mut arrivals = storage.queues().powers().arrivals.as_ref().unwrap().subscribe(&queue);
    let deletion = storage.queues().delete_all(&queue, heads, ExpiredReceipt::Refuse);
    tokio::select! {
        _ = deletion => panic!("the table is locked"),
        () = wait_for_waiting(&client, &schema, 1) => {}
    }
    lock.rollback().await.unwrap();
    within(arrivals.wait()).await;
    assert_eq!(texts(&get(&storage, &queue, 32).await), ["next"]);
}
