//! Transactions of other programs that stay open: their snapshots keep PostgreSQL from removing rows, and
//! their rows become visible late.

use std::time::Duration;

use jobqueue::QueueName;
use jobqueue::postgres::Options;
use jobqueue::postgres::tokio_postgres::Client;
use jobqueue::storage::{ExpiredReceipt, GetMessages, PutMessage, Storage, StoreErrorKind};

use crate::{
    LONG, connect, connect_to, get, named, named_with_limit, own_schema, put, texts, with_queue, within,
};
use jobqueue_test_support::postgres::Postgres;

const JOBS: usize = 6_000;
const LIST: usize = 500;

/// Puts jobs in lists, and receives and deletes each list before the next.
async fn pass(storage: &Storage, queue: &QueueName, jobs: usize) {
    for _ in 0..jobs / LIST {
        for put in storage.queues().put_all(queue, vec![PutMessage::new("a job"); LIST].into()).await {
            put.unwrap();
        }
        let mut done = 0;
        while done < LIST {
            let messages = get(storage, queue, 32).await;
            done += messages.len();
            let messages = messages.into_iter().map(|message| message.message).collect();
            for deleted in storage.queues().delete_all(queue, messages, ExpiredReceipt::Refuse).await {
                deleted.unwrap();
            }
        }
    }
}

/// Returns the number of entries of the index of visible messages that were read so far. Sessions report it
/// when they end.
async fn entries_read(client: &Client, schema: &str) -> i64 {
    let sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1";
    within(async {
        while client.query_one(sessions, &[&schema]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let read = "SELECT idx_tup_read FROM pg_stat_user_indexes WHERE schemaname = $1 AND indexrelname = 'message_due'";
    client.query_one(read, &[&schema]).await.unwrap().get(0)
}

/// A get reads a bounded number of entries for each message, however many have been done while a snapshot is
/// open. A scan from the beginning would read some thousand.
#[tokio::test]
async fn cost_of_a_get_does_not_grow_while_a_snapshot_is_open() {
    let (storage, queue, schema) = named().await;
    let (mut reader, client) = (connect(Postgres::shared()).await, connect(Postgres::shared()).await);
    let snapshot = reader
        .build_transaction()
        .isolation_level(jobqueue::postgres::tokio_postgres::IsolationLevel::RepeatableRead);
    let snapshot = snapshot.start().await.unwrap();
    snapshot.query_one("SELECT 1", &[]).await.unwrap();
    pass(&storage, &queue, JOBS).await;
    drop(storage);
    let read = entries_read(&client, &schema).await;
    snapshot.commit().await.unwrap();
    let by_job = read / JOBS as i64;
    assert!(by_job < 20, "{by_job} entries of the index were read for each job, {read} in all");
}

/// A transaction has a number, has put a message, and commits after others that began later have been
/// received.
#[tokio::test]
async fn message_of_a_late_commit_is_found_by_the_next_get() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let mut client = connect(Postgres::shared()).await;
    for round in 0..3 {
        let transaction = client.transaction().await.unwrap();
        let late = format!("SELECT {schema}.put_row(1, NULL, '\\x00', 0, NULL, 'late')");
        transaction.batch_execute(&late).await.unwrap();
        for _ in 0..5 {
            put(&storage, &queue, "early").await;
            assert_eq!(texts(&get(&storage, &queue, 32).await), ["early"], "round {round}");
            assert_eq!(get(&storage, &queue, 32).await, [], "round {round}");
        }
        transaction.commit().await.unwrap();
        assert_eq!(texts(&get(&storage, &queue, 32).await), ["late"], "round {round}");
    }
}

/// The same without an operation of the queue between: the transaction began before this process has looked
/// at the queue.
#[tokio::test]
async fn message_of_a_transaction_before_the_first_get_is_found() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options).await;
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    let late = format!("SELECT {schema}.put_row(1, NULL, '\\x00', 0, NULL, 'late')");
    transaction.batch_execute(&late).await.unwrap();
    assert_eq!(get(&storage, &queue, 32).await, []);
    transaction.commit().await.unwrap();
    assert_eq!(texts(&get(&storage, &queue, 32).await), ["late"]);
}

/// The first get of a process waits for another program that changes the table. A job of long ago is received
/// all the same.
#[tokio::test]
async fn get_that_waits_for_the_table_is_no_long_scan() {
    let (storage, queue, schema) = named_with_limit(Duration::from_secs(5)).await;
    get_after_a_wait_for_the_table(&storage, &queue, &schema).await;
}

/// The role has a shorter limit than the options.
#[tokio::test]
async fn get_of_a_limited_role_that_waits_for_the_table_is_no_long_scan() {
    let (_, schema) = own_schema();
    let text = format!("{}&options=-c%20statement_timeout%3D4s", Postgres::shared().connection_string());
    let (storage, queue) = with_queue(Options::from_connection_string(&text).unwrap().schema(&schema)).await;
    get_after_a_wait_for_the_table(&storage, &queue, &schema).await;
}

/// Receives a job of long ago by the second get of a process, whose first get waited for the table.
async fn get_after_a_wait_for_the_table(storage: &Storage, queue: &QueueName, schema: &str) {
    put(storage, queue, "of long ago").await;
    let mut client = connect(Postgres::shared()).await;
    let old = format!("UPDATE {schema}.message SET visible_at = visible_at - 3600000");
    client.batch_execute(&old).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute(&format!("LOCK TABLE {schema}.message")).await.unwrap();
    let waited = storage.queues().get(queue, GetMessages::new(1, LONG)).await.unwrap_err();
    assert_eq!((waited.kind(), waited.is_ambiguous()), (StoreErrorKind::Timeout, false), "{waited}");
    transaction.rollback().await.unwrap();
    assert_eq!(texts(&get(storage, queue, 1).await), ["of long ago"]);
}

/// The commits of gets wait for a standby that is gone. Each get leases the next job of long ago all the
/// same.
#[tokio::test]
async fn get_that_waits_for_its_commit_is_no_long_scan() {
    let server = Postgres::start(&["fsync=off", "synchronous_standby_names=gone"]);
    let text = server.connection_string();
    let local = format!("{text}&options=-c%20synchronous_commit%3Dlocal");
    let (preparing, queue) = with_queue(Options::from_connection_string(&local).unwrap()).await;
    put(&preparing, &queue, "of long ago").await;
    put(&preparing, &queue, "of long ago").await;
    let client = connect_to(&local).await;
    client.batch_execute("UPDATE jobqueue.message SET visible_at = visible_at - 3600000").await.unwrap();
    let options = Options::from_connection_string(&text).unwrap().listen(false);
    let storage = Storage::open(options.timeout(Duration::from_secs(3))).await.unwrap();
    for leased in 1..=2_i64 {
        let error = storage.queues().get(&queue, GetMessages::new(1, LONG)).await.unwrap_err();
        assert_eq!((error.kind(), error.is_ambiguous()), (StoreErrorKind::Timeout, true), "{error}");
        let count = "SELECT count(*) FROM jobqueue.message WHERE lease = 1";
        assert_eq!(client.query_one(count, &[]).await.unwrap().get::<_, i64>(0), leased);
    }
}

/// Messages that another statement has locked are passed over, and are found when it was rolled back, at the
/// latest by a scan of the whole queue.
#[tokio::test]
async fn messages_of_a_rolled_back_claim_are_found_again() {
    let (options, schema) = own_schema();
    let (storage, queue) = with_queue(options).await;
    put(&storage, &queue, "locked").await;
    let mut client = connect(Postgres::shared()).await;
    let transaction = client.transaction().await.unwrap();
    let lock = format!("SELECT id FROM {schema}.message FOR UPDATE");
    transaction.batch_execute(&lock).await.unwrap();
    put(&storage, &queue, "free").await;
    assert_eq!(texts(&get(&storage, &queue, 32).await), ["free"], "a get does not wait");
    transaction.rollback().await.unwrap();
    within(async {
        while get(&storage, &queue, 32).await.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await;
}
