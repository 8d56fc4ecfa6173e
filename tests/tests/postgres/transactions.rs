//! Sends within the application's own transaction.

use std::time::Duration;

use jobqueue::postgres::put_in;
use jobqueue::storage::{PutMessage, Storage};
use jobqueue::{ErrorKind, Queue};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::jobs::{Task, task};

use crate::{connect, get, own_schema, texts, with_queue};

async fn tasks() -> (Storage, Queue<Task>) {
    let (options, _) = own_schema();
    let storage = Storage::open(options).await.unwrap();
    let queue = storage.queue().await.unwrap();
    (storage, queue)
}

/// A task whose payload does not fit into a message.
fn large() -> Task {
    Task { name: "a".into(), data: "x".repeat(100_000) }
}

/// I19, Q1
#[tokio::test]
async fn job_commits_with_the_transaction() {
    let (_storage, queue) = tasks().await;
    let mut client = connect(Postgres::shared()).await;
    client.batch_execute("CREATE TABLE IF NOT EXISTS orders (id text)").await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.execute("INSERT INTO orders VALUES ('a')", &[]).await.unwrap();
    queue.send(&large()).in_postgres(&transaction).await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 0, "nobody sees it before the commit");
    transaction.commit().await.unwrap();
    let found = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(*found.message(), large());
    found.complete().await.unwrap();
}

/// I19, Q2
#[tokio::test]
async fn job_rolls_back_with_the_transaction() {
    let (storage, queue) = tasks().await;
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    queue.send(&large()).in_postgres(&transaction).await.unwrap();
    transaction.rollback().await.unwrap();
    assert!(queue.is_empty().await.unwrap());
    let container = "jobqueue-payloads".parse().unwrap();
    let listed = storage.blobs().list_blobs(&container, "", None).await;
    assert!(listed.is_err() || listed.unwrap().blobs.is_empty(), "the payload is gone too");
}

#[tokio::test]
async fn commit_wakes_the_workers_of_all_processes() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let mut subscription = storage.queues().subscribe(&queue).unwrap();
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    put_in(&transaction, &schema, &queue, PutMessage::new("text")).await.unwrap();
    transaction.commit().await.unwrap();
    loop {
        tokio::time::timeout(Duration::from_secs(20), subscription.wait()).await.expect("a notification");
        match texts(&get(&storage, &queue, 1).await)[..] {
            ["text"] => return,
            ref other => assert!(other.is_empty(), "{other:?}"),
        }
    }
}

#[tokio::test]
async fn send_outside_of_the_database_is_refused() {
    let elsewhere = Storage::memory().queue::<Task>().await.unwrap();
    let (_storage, queue) = tasks().await;
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    let refused = elsewhere.send(&task("a")).in_postgres(&transaction).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    assert!(refused.to_string().contains("not on PostgreSQL"), "{refused}");
    let waits = queue.send(&task("a")).when_below(5).in_postgres(&transaction).await.unwrap_err();
    assert_eq!(waits.kind(), ErrorKind::Invalid, "{waits}");
    queue.send(&task("b")).in_postgres(&transaction).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 1, "a refusal leaves the transaction usable");
}
