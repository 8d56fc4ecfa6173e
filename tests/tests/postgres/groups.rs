//! The order of groups while many put, receive and delete at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use jobqueue::QueueName;
use jobqueue::storage::{ExpiredReceipt, Storage, StoreErrorKind};

use crate::{connect, get, named, of_group, own_schema, texts, with_queue, within};
use jobqueue_test_support::postgres::Postgres;

const PRODUCERS: usize = 4;
const MESSAGES: usize = 40;

async fn produce(storage: Storage, queue: QueueName, producer: usize) {
    for number in 0..MESSAGES {
        let message = of_group(format!("{producer}:{number}"), ["a", "b"][number % 2]);
        storage.queues().put(&queue, message).await.unwrap();
    }
}

/// Receives and deletes one message after the other until `seen` has all.
async fn consume(
    storage: Storage,
    queue: QueueName,
    seen: Arc<Mutex<Vec<String>>>,
    running: Arc<Mutex<HashMap<usize, u32>>>,
) {
    while seen.lock().unwrap().len() < PRODUCERS * MESSAGES {
        let Some(message) = get(&storage, &queue, 1).await.pop() else {
            tokio::task::yield_now().await;
            continue;
        };
        let text = message.text.unwrap();
        let group = text.split_once(':').unwrap().1.parse::<usize>().unwrap() % 2;
        let others = running.lock().unwrap().insert(group, 1);
        assert!(others.unwrap_or(0) == 0, "two messages of group {group} are leased");
        tokio::task::yield_now().await;
        seen.lock().unwrap().push(text);
        running.lock().unwrap().insert(group, 0);
        storage.queues().delete(&queue, &message.message, ExpiredReceipt::Refuse).await.unwrap();
    }
}

// I21
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn group_loses_nothing_and_runs_one_at_a_time() {
    let (options, _) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let (seen, running) = (Arc::default(), Arc::default());
    let mut tasks = tokio::task::JoinSet::new();
    for producer in 0..PRODUCERS {
        tasks.spawn(produce(storage.clone(), queue.clone(), producer));
        tasks.spawn(consume(storage.clone(), queue.clone(), Arc::clone(&seen), Arc::clone(&running)));
    }
    within(tasks.join_all()).await;
    let seen: Vec<String> = std::mem::take(&mut seen.lock().unwrap());
    assert_eq!(seen.len(), PRODUCERS * MESSAGES);
    for (producer, group) in (0..PRODUCERS).flat_map(|producer| [(producer, 0), (producer, 1)]) {
        let numbers = seen.iter().filter_map(|text| text.strip_prefix(&format!("{producer}:")));
        let numbers: Vec<usize> = numbers.map(|number| number.parse().unwrap()).collect();
        let numbers: Vec<_> = numbers.into_iter().filter(|number| number % 2 == group).collect();
        assert!(numbers.is_sorted(), "producer {producer}, group {group}: {numbers:?}");
    }
}

/// The first of a group is deleted while a transaction that has put another one is still open: the other one
/// is not forgotten.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_of_an_open_transaction_follows_the_first_of_its_group() {
    let (storage, queue, schema) = named().await;
    storage.queues().put(&queue, of_group("first", "a")).await.unwrap();
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    let put = format!("SELECT {schema}.put_row(1, substr(sha256('a'), 1, 16), '\\x00', 0, NULL, 'second')");
    transaction.batch_execute(&put).await.unwrap();
    let first = get(&storage, &queue, 32).await;
    assert_eq!(texts(&first), ["first"], "a claim does not wait for the transaction");
    let first = first[0].message.clone();
    let held =
        storage.queues().delete_all(&queue, vec![first.clone()], ExpiredReceipt::Refuse).await.remove(0);
    assert_eq!(held.unwrap_err().kind(), StoreErrorKind::Timeout);
    let deletion = tokio::spawn({
        let (storage, queue) = (storage.clone(), queue.clone());
        async move { storage.queues().delete(&queue, &first, ExpiredReceipt::Refuse).await }
    });
    transaction.commit().await.unwrap();
    deletion.await.unwrap().unwrap();
    assert_eq!(texts(&get(&storage, &queue, 32).await), ["second"]);
}

/// The sender of a waiting message takes it back at the moment when the first is deleted.
#[tokio::test]
async fn deleted_waiting_messages_are_passed_over() {
    let (options, _) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let mut put = Vec::new();
    for text in ["1", "2", "3"] {
        put.push(storage.queues().put(&queue, of_group(text, "a")).await.unwrap().message);
    }
    storage.queues().delete(&queue, &put[1], ExpiredReceipt::Refuse).await.unwrap();
    let first = get(&storage, &queue, 32).await;
    assert_eq!(texts(&first), ["1"]);
    storage.queues().delete(&queue, &first[0].message, ExpiredReceipt::Refuse).await.unwrap();
    assert_eq!(texts(&get(&storage, &queue, 32).await), ["3"]);
}

/// An expired message holds up its group for about a second, if there are gets.
#[tokio::test]
async fn expired_first_message_makes_room() {
    let (options, _) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let ttl = std::time::Duration::from_millis(1);
    storage.queues().put(&queue, of_group("short", "a").with_ttl(ttl)).await.unwrap();
    storage.queues().put(&queue, of_group("next", "a")).await.unwrap();
    within(async {
        loop {
            let found = get(&storage, &queue, 32).await;
            // The first get can come before the message has expired.
            match texts(&found)[..] {
                [] => tokio::task::yield_now().await,
                ["next"] => break,
                ref other => panic!("{other:?}"),
            }
        }
    })
    .await;
}
