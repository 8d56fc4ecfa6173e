//! Sends within the application's own transaction.

use std::time::Duration;

use jobqueue::postgres::tokio_postgres::IsolationLevel;
use jobqueue::postgres::{Options, create_blob_in, put_in};
use jobqueue::storage::{BlobName, PutBlob, PutMessage, Storage, StoreErrorKind, Stores};
use jobqueue::{ErrorKind, Queue};
use jobqueue_test_support::postgres::Postgres;
use jobqueue_tests::jobs::{Task, task};

use crate::{connect, get, own_schema, texts, wait_for_waiting, with_queue, within};

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

/// The schema has no container for payloads yet. The transaction creates its blob, and stays open.
#[tokio::test]
async fn first_large_payload_in_a_transaction_holds_up_no_others() {
    let (_storage, queue) = tasks().await;
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    queue.send(&large()).in_postgres(&transaction).await.unwrap();
    within(queue.send(&large()).into_future()).await.unwrap();
    transaction.rollback().await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}

/// Behind a pooler in transaction mode, the connections that it would wait for are those of other
/// transactions.
// audit 25, databases B1
#[tokio::test]
async fn transaction_waits_for_no_other_connection() {
    let (_, schema) = own_schema();
    let text = format!("{}&application_name={schema}", Postgres::shared().connection_string());
    let options = Options::from_connection_string(&text).unwrap().schema(&schema).max_connections(1);
    let storage = Storage::open(options).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    let mut other = connect(Postgres::shared()).await;
    let lock = other.transaction().await.unwrap();
    lock.batch_execute(&format!("LOCK TABLE {schema}.garbage")).await.unwrap();
    let blobs = storage.blobs().clone();
    let waiting = tokio::spawn(async move { blobs.delete_container(&"none".parse().unwrap()).await });
    let watcher = connect(Postgres::shared()).await;
    wait_for_waiting(&watcher, &schema, 1).await;
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    let large = large();
    let send = queue.send(&large).in_postgres(&transaction);
    tokio::time::timeout(Duration::from_secs(10), send).await.expect("it waits for nothing").unwrap();
    transaction.commit().await.unwrap();
    lock.rollback().await.unwrap();
    waiting.await.unwrap().unwrap_err();
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

/// The queues and the blobs are in two databases, in schemas of one name.
#[tokio::test]
async fn payload_is_not_written_into_another_database_than_that_of_the_blobs() {
    let (options, schema) = own_schema();
    let mut client = connect(Postgres::shared()).await;
    client.batch_execute(&format!("CREATE DATABASE {schema}")).await.unwrap();
    let other = Postgres::shared().connection_string().replace("/postgres?", &format!("/{schema}?"));
    let other = Options::from_connection_string(&other).unwrap().schema(&schema);
    let mut stores = Stores::from(Storage::open(options).await.unwrap());
    let other = Stores::from(Storage::open(other).await.unwrap());
    (stores.blobs, stores.blob_powers) = (other.blobs, other.blob_powers);
    let queue = Storage::from(stores).queue().await.unwrap();
    let transaction = client.transaction().await.unwrap();
    queue.send(&task("a")).in_postgres(&transaction).await.unwrap();
    let refused = queue.send(&large()).in_postgres(&transaction).await.unwrap_err();
    assert!(refused.to_string().contains("blobs elsewhere"), "{refused}");
}

/// A schema that comes with a request cannot become a part of a statement.
#[tokio::test]
async fn name_of_a_schema_is_checked_before_it_is_used() {
    let (options, _) = own_schema();
    let (_storage, queue) = with_queue(options).await;
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    for wrong in ["a b", "x.queue q, (SELECT 1) AS", "A\"", ""] {
        let refused = put_in(&transaction, wrong, &queue, PutMessage::new("text")).await.unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::InvalidInput, "{wrong}: {refused}");
        let blob = blob("name");
        let refused = create_blob_in(&transaction, wrong, &blob, "text".into(), PutBlob::if_absent())
            .await
            .unwrap_err();
        assert_eq!(refused.kind(), StoreErrorKind::InvalidInput, "{wrong}: {refused}");
    }
    transaction.execute("SELECT 1", &[]).await.expect("the transaction is usable");
}

// What is wrong with the transaction is not called a fault of the server.
#[tokio::test]
async fn errors_say_what_the_transaction_lacks() {
    let (options, schema) = own_schema();
    let (_storage, queue) = with_queue(options).await;
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    transaction.execute("SELECT 1 / 0", &[]).await.unwrap_err();
    let error = put_in(&transaction, &schema, &queue, PutMessage::new("text")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::InvalidInput, false), "{error}");
    assert!(error.to_string().contains("roll it back"), "{error}");
    transaction.rollback().await.unwrap();
    let transaction = client.build_transaction().read_only(true).start().await.unwrap();
    let error = put_in(&transaction, &schema, &queue, PutMessage::new("text")).await.unwrap_err();
    assert!(error.to_string().contains("the transaction is read-only"), "{error}");
}

/// The first of the group came after the transaction's snapshot.
#[tokio::test]
async fn put_by_an_older_snapshot_asks_for_a_repetition() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let of_group = |text: &str| PutMessage::new(text).with_group("a".to_owned());
    let mut client = connect(Postgres::shared()).await;
    let level = IsolationLevel::RepeatableRead;
    let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
    transaction.execute("SELECT 1", &[]).await.unwrap();
    storage.queues().put(&queue, of_group("first")).await.unwrap();
    let error = put_in(&transaction, &schema, &queue, of_group("next")).await.unwrap_err();
    assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Unavailable, false), "{error}");
    assert!(error.is_retryable() && error.to_string().contains("another transaction"), "{error}");
    transaction.rollback().await.unwrap();
    let transaction = client.build_transaction().isolation_level(level).start().await.unwrap();
    put_in(&transaction, &schema, &queue, of_group("next")).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(texts(&get(&storage, &queue, 32).await), ["first"], "the next one waits for its turn");
}

/// A transaction can send to each schema of its database.
#[tokio::test]
async fn message_goes_to_the_schema_that_is_named() {
    let ((own, schema), (other, _)) = (own_schema(), own_schema());
    let ((own, queue), (other, _)) = (with_queue(own).await, with_queue(other).await);
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    put_in(&transaction, &schema, &queue, PutMessage::new("text")).await.unwrap();
    transaction.commit().await.unwrap();
    assert_eq!(get(&other, &queue, 1).await, []);
    assert_eq!(texts(&get(&own, &queue, 1).await), ["text"]);
}

/// Numbers of containers are 32 bits: sends do not use them up.
#[tokio::test]
async fn blobs_of_transactions_use_one_number_of_their_container() {
    let (options, schema) = own_schema();
    let _storage = Storage::open(options).await.unwrap();
    let mut client = connect(Postgres::shared()).await;
    for name in ["one", "two", "three"] {
        let transaction = client.transaction().await.unwrap();
        let blob = blob(name);
        create_blob_in(&transaction, &schema, &blob, "text".into(), PutBlob::if_absent()).await.unwrap();
        transaction.commit().await.unwrap();
    }
    let used = format!("SELECT last_value FROM {schema}.container_id_seq");
    assert_eq!(client.query_one(&used, &[]).await.unwrap().get::<_, i64>(0), 1);
}

/// A savepoint that is rolled back takes its message with it, and the transaction commits without.
#[tokio::test]
async fn savepoint_rolls_back_alone() {
    let (_storage, queue) = tasks().await;
    let mut client = connect(Postgres::shared()).await;
    let mut transaction = client.transaction().await.unwrap();
    queue.send(&task("outer")).in_postgres(&transaction).await.unwrap();
    let savepoint = transaction.savepoint("a_savepoint").await.unwrap();
    queue.send(&task("inner")).in_postgres(&savepoint).await.unwrap();
    savepoint.rollback().await.unwrap();
    transaction.commit().await.unwrap();
    let found = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(found.message().name, "outer");
    found.complete().await.unwrap();
    assert!(queue.is_empty().await.unwrap());
}

fn blob(name: &str) -> BlobName {
    BlobName::new("a-container".parse().unwrap(), name).unwrap()
}
