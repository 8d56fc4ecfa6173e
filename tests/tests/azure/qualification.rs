//! The contracts of durability of `delivery/qualification.rs` that do not need SQLite, over Azurite, with
//! workers in processes of their own.
//!
//! Completion and renewal after expiry (3 and 4) are refused by the worker's own deadline there: the service
//! accepts an expired receipt until another client has the message. Contracts of the caller's transaction
//! (1, 2) and of contention for a file (9) do not apply.

use std::time::Duration;

use jobqueue::azure::Options;
use jobqueue::settings::SettingOverrides;
use jobqueue::storage::{ExpiredReceipt, GetMessages, LeasedMessage, PutMessage, Storage, UpdateMessage};
use jobqueue::{JobError, QueueName, Worker, WorkerBuilder};
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::running::Running;
use jobqueue_tests::say;

async fn open(connection: &str) -> Storage {
    Storage::open(Options::from_connection_string(connection).unwrap()).await.unwrap()
}

async fn fresh() -> Storage {
    open(&Azurite::shared().connection_string()).await
}

fn unique() -> QueueName {
    QueueName::new(format!("qualify-{}", uuid::Uuid::new_v4().simple())).unwrap()
}

fn worker(storage: Storage) -> WorkerBuilder {
    let mut terms = SettingOverrides::default();
    terms.timeout = Some(Duration::from_secs(2));
    Worker::builder(storage).overrides(terms).max_idle_delay(Duration::from_millis(300))
}

async fn completes(storage: Storage, queue: &QueueName, attempt: u32) {
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let mut running = Running::start(worker(storage).handle_on(queue.as_str(), handler)).await;
    let ended = running.ended().await;
    assert_eq!(ended.name(), "completed");
    assert_eq!(ended.job.unwrap().attempt, attempt);
    drop(running.stop().await);
}

/// Gets the only message; waits until it is visible.
async fn claim(storage: &Storage, queue: &QueueName, seconds: u64) -> LeasedMessage {
    let get = GetMessages::new(1, Duration::from_secs(seconds));
    loop {
        if let Some(leased_job) = storage.queues().get(queue, get).await.unwrap().messages.pop() {
            return leased_job;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Contracts 5 and 6: every stale operation is refused, whether another process or the same one has the job
/// now.
// I5, F23, F24, F25, Q5, Q6
#[tokio::test]
async fn stale_lease_operations_are_refused() {
    let (first, second) = (fresh().await, fresh().await);
    for successor in [&first, &second] {
        let queue = unique();
        first.queues().create_queue(&queue, &Default::default()).await.unwrap();
        first.queues().put(&queue, PutMessage::new("job")).await.unwrap();
        let stale = claim(&first, &queue, 1).await;
        let owner = claim(successor, &queue, 60).await;
        assert_eq!(owner.message.id, stale.message.id);
        assert_eq!(owner.dequeue_count, 2);
        for expired in [ExpiredReceipt::Refuse, ExpiredReceipt::Allow] {
            let deleted = first.queues().delete(&queue, &stale.message, expired).await.unwrap_err();
            assert!(deleted.is_lease_lost(), "{deleted}");
            let change =
                UpdateMessage::new(Duration::ZERO).with_text("stale".to_owned()).with_expired(expired);
            let updated = first.queues().update(&queue, &stale.message, change).await.unwrap_err();
            assert!(updated.is_lease_lost(), "{updated}");
        }
        successor.queues().delete(&queue, &owner.message, ExpiredReceipt::Refuse).await.unwrap();
    }
}

/// Contract 7: failed work is retried by another worker.
// I11, Q7
#[tokio::test]
async fn failed_work_is_retried_by_a_fresh_worker() {
    let (storage, queue) = (fresh().await, unique());
    storage.queue_named::<Task>(queue.as_str()).await.unwrap().send(&task("a")).await.unwrap();
    let handler =
        |_: Task| async { Err::<(), _>(JobError::retry_after(Duration::from_secs(2), "first try")) };
    let mut running = Running::start(worker(storage).handle_on(queue.as_str(), handler)).await;
    assert_eq!(running.ended().await.name(), "retried");
    drop(running.stop().await);
    completes(fresh().await, &queue, 2).await;
}

#[tokio::test]
async fn part_of_a_killed_worker() {
    let Some(input) = part("qualification::part_of_a_killed_worker") else { return };
    let (queue, connection) = input.split_once(' ').unwrap();
    let handler = |_: Task| async {
        say!("started");
        std::future::pending::<()>().await;
        Ok::<(), JobError>(())
    };
    let worker = worker(open(connection).await).handle_on(queue, handler).build().unwrap();
    let _ = worker.run_until(std::future::pending()).await.unwrap();
}

/// Contract 8: work interrupted by SIGKILL is recovered, and costs no attempt.
// I1, F43, Q8
#[tokio::test]
async fn work_interrupted_by_sigkill_is_recovered() {
    let (storage, queue) = (fresh().await, unique());
    storage.queue_named::<Task>(queue.as_str()).await.unwrap().send(&task("a")).await.unwrap();
    let input = format!("{queue} {}", Azurite::shared().connection_string());
    let mut child = Part::start("qualification::part_of_a_killed_worker", input);
    assert_eq!(child.says().as_deref(), Some("started"));
    let _ = child.kill();
    completes(storage, &queue, 1).await;
}
