//! Sends in a transaction of the application.
//!
//! One of them stays open until workers have been refused twice (F72), or for `JOBQUEUE_TRANSACTION_SECONDS`.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use jobqueue::clock::{Clock as _, ManualClock};
use jobqueue::sqlite::Options;
use jobqueue::storage::{ContainerName, PutMessage};
use jobqueue::{ErrorKind, Event, JobError, Queue, Runtime, SendOptions, Storage, Worker};
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
    let storage = Storage::open(Options::new(&path).busy_timeout(patience)).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let mut worker = Running::start(Worker::builder(storage.clone()).handle(handler)).await;

    let mut mine = Connection::open(&path).unwrap();
    let transaction = mine.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let began = Instant::now();
    let sent = queue.send(&task("a")).in_sqlite(&transaction).unwrap();
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
        assert!(error.contains("write lock") && error.contains("was not applied"), "{error}");
        refused += 1;
    }
    println!("refused {refused} times, read {seen} times");
    transaction.commit().unwrap();
    let ended = worker.ended().await;
    assert_eq!(ended.name(), "completed");
    assert_eq!(ended.job.unwrap().id.to_string(), sent.id().to_owned());
    let report = worker.stop().await;
    assert_eq!(report.completed, 1);
}

// A clock of its own could not doubt a wall clock that is wrong for a moment, and all processes would follow
// it.
#[tokio::test]
async fn a_send_in_a_transaction_uses_the_time_of_the_open_store() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let clock = Arc::new(ManualClock::new());
    let storage =
        Storage::open(Options::new(&path).runtime(Runtime::new().with_clock(clock.clone()))).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    clock.advance(Duration::from_secs(5));
    let mut mine = Connection::open(&path).unwrap();
    let transaction = mine.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let _ = queue.send(&task("a")).in_sqlite(&transaction).unwrap();
    transaction.commit().unwrap();
    let peeked = storage.queues().peek(queue.name(), 1).await.unwrap().remove(0);
    assert_eq!(peeked.inserted, clock.now());
}

#[tokio::test]
async fn job_sent_in_a_transaction_can_be_cancelled_after() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let queue = Storage::open(Options::new(&path)).await.unwrap().queue::<Task>().await.unwrap();
    let mut mine = Connection::open(&path).unwrap();
    let transaction = mine.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let named = SendOptions::new().id("a-1");
    let sent = queue.send(&task("a")).with(named).in_sqlite(&transaction).unwrap();
    let kept = queue.send(&task("b")).in_sqlite(&transaction).unwrap();
    transaction.commit().unwrap();
    assert_eq!(sent.id(), "a-1");
    assert!(queue.cancel(&sent).await.unwrap() && !queue.cancel(&sent).await.unwrap());
    let found = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(&*found.info().id, kept.id());
    assert!(!queue.cancel(&kept).await.unwrap(), "somebody has received it");
    found.complete().await.unwrap();
}

#[tokio::test]
async fn cancelled_job_of_a_transaction_leaves_no_payload() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let storage = Storage::open(Options::new(&path)).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    let mut mine = Connection::open(&path).unwrap();
    let transaction = mine.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let large = Task { data: "x".repeat(200_000), ..task("large") };
    let sent = queue.send(&large).in_sqlite(&transaction).unwrap();
    transaction.commit().unwrap();
    let payloads = ContainerName::new("jobqueue-payloads").unwrap();
    let left = async || storage.blobs().list_blobs(&payloads, "", None).await.unwrap().blobs.len();
    assert_eq!(left().await, 1);
    assert!(queue.cancel(&sent).await.unwrap());
    assert_eq!(left().await, 0);
}

fn count(row: &rusqlite::Row<'_>) -> rusqlite::Result<i64> {
    row.get(0)
}

// M
#[tokio::test]
async fn deferred_transaction_is_refused_until_it_holds_the_write_lock() {
    let (_folder, path, queue) = opened().await;
    let mut mine = Connection::open(&path).unwrap();
    mine.busy_timeout(Duration::ZERO).unwrap();
    mine.execute("CREATE TABLE own (id INTEGER)", []).unwrap();
    // Nothing done yet, something read, and overtaken by another connection.
    for overtaken in [None, Some(false), Some(true)] {
        let deferred = mine.transaction().unwrap();
        if let Some(overtaken) = overtaken {
            let _ = deferred.query_row("SELECT count(*) FROM own", [], count).unwrap();
            if overtaken {
                let _ = queue.send(&task("faster")).await.unwrap();
            }
        }
        let error = queue.send(&task("late")).in_sqlite(&deferred).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid, "{overtaken:?}");
        assert!(error.to_string().contains("Immediate"), "{error}");
        let put = jobqueue::sqlite::put_in(&deferred, queue.name(), PutMessage::new("x")).unwrap_err();
        assert!(put.to_string().contains("Immediate"), "{put}");
        deferred.rollback().unwrap();
    }
    let written = mine.transaction().unwrap();
    written.execute("INSERT INTO own VALUES (1)", []).unwrap();
    let _ = queue.send(&task("after a write")).in_sqlite(&written).unwrap();
    written.commit().unwrap();
    let immediate = mine.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let _ = queue.send(&task("again")).in_sqlite(&immediate).unwrap();
    immediate.commit().unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 3);
}

/// A savepoint, or a transaction that another library has begun on the connection, is as good as a
/// `Transaction`.
#[tokio::test]
async fn send_joins_whatever_transaction_is_open_on_the_connection() {
    let (_folder, path, queue) = opened().await;
    let mut mine = Connection::open(&path).unwrap();
    let none = queue.send(&task("alone")).in_sqlite(&mine).unwrap_err();
    assert_eq!(none.kind(), ErrorKind::Invalid);
    assert!(none.to_string().contains("no transaction is open"), "{none}");

    mine.execute_batch("BEGIN IMMEDIATE").unwrap();
    let _ = queue.send(&task("kept")).in_sqlite(&mine).unwrap();
    let savepoint = mine.savepoint().unwrap();
    let _ = queue.send(&task("taken back")).in_sqlite(&savepoint).unwrap();
    drop(savepoint);
    mine.execute_batch("COMMIT").unwrap();
    let found = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(found.message(), &task("kept"));
    found.complete().await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
}

async fn opened() -> (tempfile::TempDir, PathBuf, Queue<Task>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let queue = Storage::open(Options::new(&path)).await.unwrap().queue::<Task>().await.unwrap();
    (folder, path, queue)
}

fn begin(connection: &mut Connection) -> rusqlite::Transaction<'_> {
    connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

// M
#[tokio::test(flavor = "multi_thread")]
async fn ordered_sends_of_a_transaction_keep_their_positions() {
    let (_folder, path, queue) = opened().await;
    let mut mine = Connection::open(&path).unwrap();
    let _ = queue.send(&task("1")).key("k").in_order().await.unwrap();
    // A rollback leaves no position behind for which others would wait.
    let undone = begin(&mut mine);
    let _ = queue.send(&task("undone")).key("k").in_order().in_sqlite(&undone).unwrap();
    undone.rollback().unwrap();
    let transaction = begin(&mut mine);
    for name in ["2", "3"] {
        let _ = queue.send(&task(name)).key("k").in_order().id(name).in_sqlite(&transaction).unwrap();
    }
    transaction.commit().unwrap();
    let _ = queue.send(&task("4")).key("k").in_order().await.unwrap();

    let ran: Arc<Mutex<Vec<String>>> = Arc::default();
    let sink = Arc::clone(&ran);
    let handler = move |task: Task| {
        sink.lock().unwrap().push(task.name);
        async { Ok::<(), JobError>(()) }
    };
    let storage = Storage::open(Options::new(&path)).await.unwrap();
    let worker = Worker::builder(storage).concurrency(8).handle(handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!(report.completed, 4);
    assert_eq!(ran.lock().unwrap().join(" "), "1 2 3 4".to_owned());
}

// M
#[tokio::test]
async fn transaction_on_another_file_is_refused() {
    let (_folder, path, queue) = opened().await;
    let (_other_folder, other, _) = opened().await;
    let refused = |queue: &Queue<Task>, path: &Path, name: &str| {
        let mut mine = Connection::open(path).unwrap();
        let transaction = begin(&mut mine);
        let sent = queue.send(&task(name)).key("k").in_order().in_sqlite(&transaction);
        sent.err().map(|error| format!("{:?}: {error:?}", error.kind()))
    };
    let memory = Storage::memory();
    for (queue, path) in [(&queue, &other), (&memory.queue::<Task>().await.unwrap(), &path)] {
        let told = refused(queue, path, "a").unwrap();
        assert!(told.starts_with("Invalid") && told.contains("another file"), "{told}");
    }
    // Queues of the file with blobs elsewhere: what needs no blob can be sent.
    let queues = Storage::open(Options::new(&path)).await.unwrap();
    let split = queues.with_blobs_of(&memory);
    let queue = split.queue::<Task>().await.unwrap();
    assert_eq!(refused(&queue, &path, "a"), None);
    let told = refused(&queue, &path, &"a".repeat(100_000)).unwrap();
    assert!(told.starts_with("Invalid") && told.contains("keeps its blobs"), "{told}");
}
