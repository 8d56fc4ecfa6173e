//! A transaction of the application that stays open for long after its send (F72).
//!
//! It stays open until workers have been refused twice, or for `JOBQUEUE_TRANSACTION_SECONDS`.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

use std::time::{Duration, Instant};

use jobqueue::sqlite::Options;
use jobqueue::{Event, JobError, SendOptions, Worker};
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::running::Running;
use rusqlite::{Connection, TransactionBehavior};

// F72
#[tokio::test(flavor = "multi_thread")]
async fn workers_keep_polling_during_an_open_transaction() {
    let seconds: Option<u64> =
        std::env::var("JOBQUEUE_TRANSACTION_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let patience = if seconds.is_some() { Duration::from_secs(10) } else { Duration::from_millis(100) };
    let storage = Options::new(&path).busy_timeout(patience).open().await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let mut worker = Running::start(Worker::builder(storage.clone()).handle(handler)).await;

    let mut mine = Connection::open(&path).unwrap();
    let transaction = mine.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let began = Instant::now();
    let sent = queue.send(&task("a")).in_transaction(&transaction).unwrap();
    let (mut refused, mut seen) = (0, 0);
    while refused < 2 || began.elapsed() < Duration::from_secs(seconds.unwrap_or(0)) {
        // Meanwhile others read, and do not see it.
        assert_eq!(queue.approximate_len().await.unwrap(), 0);
        seen += 1;
        let error = worker.until(|event| match event {
            Event::PollFailed { error, .. } => Some(error),
            Event::Finished { .. } => panic!("it was run before it was committed"),
            _ => None,
        });
        let error = error.await;
        assert!(error.contains("write lock") && error.contains("nothing was done"), "{error}");
        refused += 1;
    }
    println!("refused {refused} times, read {seen} times");
    transaction.commit().unwrap();
    let ended = worker.ended().await;
    assert_eq!((ended.name(), ended.job.unwrap().id.to_string()), ("completed", sent.id().to_owned()));
    let report = worker.stop().await;
    assert_eq!(report.completed, 1);
}

#[tokio::test]
async fn job_sent_in_a_transaction_can_be_cancelled_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let queue = Options::new(&path).open().await.unwrap().queue::<Task>().await.unwrap();
    let mut mine = Connection::open(&path).unwrap();
    let transaction = mine.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let named = SendOptions::new().id("a-1");
    let sent = queue.send(&task("a")).with(named).in_transaction(&transaction).unwrap();
    let kept = queue.send(&task("b")).in_transaction(&transaction).unwrap();
    transaction.commit().unwrap();
    assert_eq!(sent.id(), "a-1");
    assert!(queue.cancel(&sent).await.unwrap() && !queue.cancel(&sent).await.unwrap());
    let found = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(&*found.info().id, kept.id());
    assert!(!queue.cancel(&kept).await.unwrap(), "somebody has received it");
    found.complete().await.unwrap();
}

/// A transaction that has read, and then another connection has written: it can write no more.
#[tokio::test]
async fn send_in_an_overtaken_deferred_transaction_says_begin_with_immediate() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let queue = Options::new(&path).open().await.unwrap().queue::<Task>().await.unwrap();
    let mut mine = Connection::open(&path).unwrap();
    mine.busy_timeout(Duration::ZERO).unwrap();
    let deferred = mine.transaction().unwrap();
    let tables = |row: &rusqlite::Row<'_>| row.get::<_, i64>(0);
    let _ = deferred.query_row("SELECT count(*) FROM sqlite_schema", [], tables).unwrap();
    let _ = queue.send(&task("faster")).await.unwrap();
    let error = queue.send(&task("late")).in_transaction(&deferred).unwrap_err();
    assert_eq!(error.kind(), jobqueue::ErrorKind::Invalid);
    let said = jobqueue::storage::StoreError::in_chain(&error).unwrap().to_string();
    assert!(said.contains("Immediate"), "{said}");
    deferred.rollback().unwrap();
    let immediate = mine.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let _ = queue.send(&task("again")).in_transaction(&immediate).unwrap();
    immediate.commit().unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 2);
}
