//! Blobs that cannot be read for a while: this costs no attempt, and no message is dead-lettered.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{ContainerName, Operation, StoreErrorKind};
use jobqueue::testing::faults::{Fault, Faulty};
use jobqueue::{Context, JobError, JobInfo, Storage};
use jobqueue_tests::jobs::{Task, after, in_memory, worker};

/// The errors of reads during an outage.
const OUTAGES: [StoreErrorKind; 4] = [
    StoreErrorKind::Unavailable,
    StoreErrorKind::Throttled,
    StoreErrorKind::Timeout,
    StoreErrorKind::Unauthorized,
];

fn heal_after(faulty: &Faulty, seconds: u64) {
    let faulty = faulty.clone();
    tokio::spawn(async move {
        after(seconds).await;
        faulty.heal();
    });
}

async fn dead_letters(storage: &Storage) -> u64 {
    storage.queue::<Task>().await.unwrap().dead_letters().unwrap().approximate_len().await.unwrap()
}

// B5
#[tokio::test(start_paused = true)]
async fn a_payload_that_cannot_be_read_costs_no_attempt() {
    for (kind, jobs) in OUTAGES.into_iter().flat_map(|kind| [(kind, 1), (kind, 200)]) {
        let faulty = Faulty::new(&in_memory());
        let storage = faulty.storage();
        let queue = storage.queue::<Task>().await.unwrap();
        for job in 0..jobs {
            let large = Task { name: job.to_string(), data: "x".repeat(100_000) };
            let _ = queue.send(&large).await.unwrap();
        }
        faulty.plan_always(Operation::GetBlob, Fault::Refuse(kind));
        heal_after(&faulty, 60);
        let attempts: Arc<Mutex<Vec<u32>>> = Arc::default();
        let sink = Arc::clone(&attempts);
        let handler = move |_: Task, info: JobInfo| {
            sink.lock().unwrap().push(info.attempt);
            async { Ok::<(), JobError>(()) }
        };
        let report = worker(&storage).handle(handler).build().unwrap().run_until(after(300)).await.unwrap();
        assert_eq!(report.completed, jobs, "{kind:?}");
        assert_eq!(report.retried, 0, "{kind:?}");
        assert_eq!(report.dead_lettered, 0, "{kind:?}");
        assert!(attempts.lock().unwrap().iter().all(|attempt| *attempt == 1));
        assert_eq!(dead_letters(&storage).await, 0, "{kind:?}");
    }
}

// B5, in `receive`.
#[tokio::test(start_paused = true)]
async fn receiving_by_hand_waits_for_a_payload_too() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&Task { name: "a".into(), data: "x".repeat(100_000) }).await.unwrap();
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    heal_after(&faulty, 60);
    let delivery = queue.receive(Duration::from_secs(300)).await.unwrap().unwrap();
    assert_eq!(delivery.info().attempt, 1);
    assert_eq!(delivery.message().data.len(), 100_000);
    assert_eq!(dead_letters(&storage).await, 0);
}

// D6
#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_cannot_be_read_costs_no_attempt() {
    for kind in OUTAGES {
        let faulty = Faulty::new(&in_memory());
        let storage = faulty.storage();
        let _ = storage.queue::<Task>().await.unwrap().send(&jobqueue_tests::jobs::task("a")).await.unwrap();
        let (plan, seen) = (faulty.clone(), Arc::new(Mutex::new(Vec::new())));
        let sink = Arc::clone(&seen);
        let handler = move |_: Task, ctx: Context| {
            let (plan, sink) = (plan.clone(), Arc::clone(&sink));
            async move {
                let saved = ctx.resume::<String>().await?;
                sink.lock().unwrap().push((ctx.info().attempt, saved.as_ref().map(String::len)));
                if saved.is_some() {
                    return Ok(());
                }
                ctx.checkpoint(&"p".repeat(50_000)).await?;
                plan.plan_always(Operation::GetBlob, Fault::Refuse(kind));
                heal_after(&plan, 60);
                Err(JobError::retry("once"))
            }
        };
        let report = worker(&storage).handle(handler).build().unwrap().run_until(after(300)).await.unwrap();
        assert_eq!(*seen.lock().unwrap(), [(1, None), (2, Some(50_000))], "{kind:?}");
        assert_eq!(report.completed, 1, "{kind:?}");
        assert_eq!(report.retried, 1, "{kind:?}");
    }
}

// D6, by hand.
#[tokio::test(start_paused = true)]
async fn a_checkpoint_that_cannot_be_read_is_a_retryable_error() {
    for kind in OUTAGES {
        let faulty = Faulty::new(&in_memory());
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        let _ = queue.send(&jobqueue_tests::jobs::task("a")).await.unwrap();
        let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
        delivery.checkpoint(&"p".repeat(50_000)).await.unwrap();
        delivery.release(Duration::ZERO).await.unwrap();
        let delivery = queue.receive(Duration::from_secs(10)).await.unwrap().unwrap();
        faulty.plan_always(Operation::GetBlob, Fault::Refuse(kind));
        let error = delivery.resume::<String>().await.unwrap_err();
        assert!(error.is_retryable() && error.kind() == jobqueue::ErrorKind::Storage, "{error:?}");
        faulty.heal();
        assert_eq!(delivery.resume::<String>().await.unwrap().unwrap().len(), 50_000);
    }
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_is_shown_again_within_its_grace_runs() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&Task { name: "a".into(), data: "x".repeat(100_000) }).await.unwrap();
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::BlobNotFound));
    heal_after(&faulty, 200);
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let report = worker(&storage).handle(handler).build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.dead_lettered, 0);
}

// No sweep removes it while a dead letter is left in the queue.
#[tokio::test(start_paused = true)]
async fn payload_is_removed_although_its_first_deletion_is_throttled() {
    let storage = in_memory();
    let faulty = Faulty::new(&storage);
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    queue.send(&Task { name: "large".into(), data: "x".repeat(100_000) }).await.unwrap();
    faulty.plan(Operation::DeleteBlob, 1, Fault::Throttle(Duration::from_secs(1)));
    let handler = |_: Task| async { Ok::<_, JobError>(()) };
    let built = worker(&faulty.storage()).handle(handler).build().unwrap();
    let report = built.run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1, "{report:?}");
    let payloads = ContainerName::new("jobqueue-payloads").unwrap();
    let left = storage.blobs().list_blobs(&payloads, "", None).await.unwrap();
    assert_eq!(left.blobs, []);
}
