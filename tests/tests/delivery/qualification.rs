//! Nine contracts of durability by which others have judged queues, each a function over any storage, run over
//! SQLite.
//!
//! To test another storage, add an opener.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jobqueue::settings::SettingOverrides;
use jobqueue::storage::{ExpiredReceipt, GetMessages, LeasedMessage, PutMessage, UpdateMessage};
use jobqueue::{JobError, QueueName, Storage, Worker};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::say;
use rusqlite::{Connection, TransactionBehavior};

struct Subject {
    _folder: tempfile::TempDir,
    file: PathBuf,
}

impl Subject {
    fn sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("jobs.db");
        Self { _folder: folder, file }
    }

    fn connection(&self) -> String {
        format!("sqlite:{}", self.file.display())
    }

    /// Opens a new handle, like another process.
    async fn open(&self) -> Storage {
        Storage::connect(&self.connection()).await.unwrap()
    }
}

fn tasks() -> QueueName {
    "tasks".parse().unwrap()
}

async fn claim(storage: &Storage, lease: Duration) -> Option<LeasedMessage> {
    let get = GetMessages::new(1, lease);
    storage.queues().get(&tasks(), get).await.unwrap().messages.into_iter().next()
}

/// Claims with a short lease, and waits until it has expired.
async fn expired(storage: &Storage) -> LeasedMessage {
    let _ = storage.queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    let leased_job = claim(storage, Duration::from_secs(1)).await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    leased_job
}

async fn completes(storage: Storage, attempts: u32) {
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let mut terms = SettingOverrides::default();
    terms.timeout = Some(Duration::from_secs(2));
    let (done, mut finished) = tokio::sync::mpsc::unbounded_channel();
    let listen = move |event: &jobqueue::Event| {
        if let jobqueue::Event::Finished { job: Some(job), .. } = event {
            let _ = done.send(job.attempt);
        }
    };
    let worker = Worker::builder(storage).overrides(terms).handle(handler).on_event(listen).build().unwrap();
    let one = async { assert_eq!(finished.recv().await, Some(attempts)) };
    assert_eq!(worker.run_until(one).await.unwrap().completed, 1);
}

// 1: commit with the caller's transaction
// I19, Q1
#[tokio::test]
async fn job_commits_with_the_callers_transaction() {
    let subject = Subject::sqlite();
    let storage = subject.open().await;
    let queue = storage.queue::<Task>().await.unwrap();
    let mut connection = Connection::open(&subject.file).unwrap();
    connection.execute("CREATE TABLE orders (id TEXT)", []).unwrap();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    transaction.execute("INSERT INTO orders VALUES ('a')", []).unwrap();
    // A payload in a blob, in a container that does not exist yet.
    let large = Task { name: "a".into(), data: "x".repeat(100_000) };
    queue.send(&large).in_sqlite(&transaction).unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 0, "nobody sees it before the commit");
    transaction.commit().unwrap();
    let found = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(*found.message(), large);
    found.complete().await.unwrap();
}

// 2: roll back with the caller's transaction
// I19, Q2
#[tokio::test]
async fn job_rolls_back_with_the_callers_transaction() {
    let subject = Subject::sqlite();
    let queue = subject.open().await.queue::<Task>().await.unwrap();
    let mut connection = Connection::open(&subject.file).unwrap();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let large = Task { name: "a".into(), data: "x".repeat(100_000) };
    queue.send(&large).in_sqlite(&transaction).unwrap();
    transaction.rollback().unwrap();
    assert!(queue.receive(Duration::ZERO).await.unwrap().is_none());
    assert!(queue.is_empty().await.unwrap());
}

// 3: completion after expiry is refused
// I5, F26, Q3
#[tokio::test]
async fn completion_after_expiry_is_refused() {
    let subject = Subject::sqlite();
    let storage = subject.open().await;
    let stale = expired(&storage).await;
    let error = storage.queues().delete(&tasks(), &stale.message, ExpiredReceipt::Refuse).await.unwrap_err();
    assert!(error.is_lease_lost(), "{error:?}");
    completes(storage, 1).await;
}

// 4: renewal after expiry is refused
// I5, F27, Q4
#[tokio::test]
async fn renewal_after_expiry_is_refused() {
    let subject = Subject::sqlite();
    let storage = subject.open().await;
    let stale = expired(&storage).await;
    let renewal = UpdateMessage::new(Duration::from_secs(30));
    let error = storage.queues().update(&tasks(), &stale.message, renewal).await.unwrap_err();
    assert!(error.is_lease_lost(), "{error:?}");
    completes(storage, 1).await;
}

async fn stale_is_refused(first: &Storage, second: &Storage) {
    let stale = expired(first).await;
    let successor = claim(second, Duration::from_secs(30)).await.unwrap();
    assert_eq!(successor.message.id, stale.message.id);
    for expired in [ExpiredReceipt::Refuse, ExpiredReceipt::Allow] {
        let error = first.queues().delete(&tasks(), &stale.message, expired).await.unwrap_err();
        assert!(error.is_lease_lost(), "{error:?}");
    }
    second.queues().delete(&tasks(), &successor.message, ExpiredReceipt::Refuse).await.unwrap();
}

// 5: stale completion by another worker
// I5, F23, Q5
#[tokio::test]
async fn stale_completion_is_refused_for_another_workers_job() {
    let subject = Subject::sqlite();
    stale_is_refused(&subject.open().await, &subject.open().await).await;
}

// 6: stale completion by the same worker
// I5, F24, Q6
#[tokio::test]
async fn stale_completion_is_refused_for_the_same_worker() {
    let subject = Subject::sqlite();
    let storage = subject.open().await;
    stale_is_refused(&storage, &storage).await;
}

// 7: failed work is tried again by a fresh worker
// I11, Q7
#[tokio::test]
async fn failed_work_is_retried_by_a_fresh_worker() {
    let subject = Subject::sqlite();
    let storage = subject.open().await;
    let _ = storage.queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    let handler = |_: Task| async { Err::<(), _>(JobError::retry_after(Duration::ZERO, "first try")) };
    let (done, mut finished) = tokio::sync::mpsc::unbounded_channel();
    let listen = move |event: &jobqueue::Event| {
        if matches!(event, jobqueue::Event::Finished { .. }) {
            let _ = done.send(());
        }
    };
    let worker = Worker::builder(storage).concurrency(1).handle(handler).on_event(listen).build().unwrap();
    let report = worker.run_until(async { finished.recv().await.unwrap() }).await.unwrap();
    let attempts = u32::try_from(report.retried).unwrap();
    assert!((1..3).contains(&attempts));
    completes(subject.open().await, attempts + 1).await;
}

#[tokio::test]
async fn part_of_a_killed_worker() {
    let Some(path) = part("qualification::part_of_a_killed_worker") else { return };
    let mut terms = SettingOverrides::default();
    terms.timeout = Some(Duration::from_secs(1));
    let handler = |_: Task| async {
        say!("started");
        std::future::pending::<()>().await;
        Ok::<(), JobError>(())
    };
    let storage = Storage::connect(&path).await.unwrap();
    let worker = Worker::builder(storage).overrides(terms).handle(handler).build().unwrap();
    let _ = worker.run_until(std::future::pending()).await.unwrap();
}

// 8: interrupted work is recovered after SIGKILL
// I1, F43, Q8
#[tokio::test]
async fn work_interrupted_by_sigkill_is_recovered() {
    let subject = Subject::sqlite();
    let storage = subject.open().await;
    let _ = storage.queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    let mut child = Part::start("qualification::part_of_a_killed_worker", subject.connection());
    assert_eq!(child.says().as_deref(), Some("started"));
    let _ = child.kill();
    completes(storage, 1).await;
}

// 9: no BUSY under contention
// I19, F61, Q9
#[tokio::test(flavor = "multi_thread")]
async fn no_busy_error_escapes_under_contention() {
    const WRITERS: usize = 8;
    const JOBS: usize = 100;
    let subject = Arc::new(Subject::sqlite());
    let _ = subject.open().await.queue::<Task>().await.unwrap();
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        let subject = Arc::clone(&subject);
        writers.spawn(async move {
            let storage = subject.open().await;
            for n in 0..JOBS {
                storage.queues().put(&tasks(), PutMessage::new(format!("{writer} {n}"))).await.unwrap();
                if let Some(leased_job) = claim(&storage, Duration::from_secs(60)).await {
                    storage
                        .queues()
                        .delete(&tasks(), &leased_job.message, ExpiredReceipt::Refuse)
                        .await
                        .unwrap();
                }
            }
        });
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    let storage = subject.open().await;
    let mut left = 0;
    while let Some(leased_job) = claim(&storage, Duration::from_secs(60)).await {
        storage.queues().delete(&tasks(), &leased_job.message, ExpiredReceipt::Refuse).await.unwrap();
        left += 1;
    }
    assert_eq!(storage.queues().queue_properties(&tasks()).await.unwrap().approximate_count, 0);
    assert!(left <= WRITERS);
}
