//! Sweeps beside clocks that are wrong, for which a sweep has the storage's clock, and beside queues that are
//! disabled or that the storage does not have.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::{Clock, ManualClock};
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::storage::{Metadata, Operation, StoreErrorKind};
use jobqueue::{JobError, Queue, Runtime, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, clock, in_memory, payloads, worker};
use tokio::time::sleep;

use super::redrive::{finish_all, large};

const HOUR: Duration = Duration::from_secs(3_600);

/// Returns the storage as a machine sees it whose clock stands still, `hours` after the storage's or before
/// it.
fn seen_from(storage: &Storage, hours: i32) -> Storage {
    let off = HOUR * hours.unsigned_abs();
    let now = clock().now();
    let time = if hours < 0 { now - off } else { now + off };
    storage.clone().with_runtime(Runtime::virtual_time(Arc::new(ManualClock::at(time))))
}

fn drained() -> SweepOptions {
    SweepOptions::new().drained_queues(true)
}

async fn removed(storage: &Storage) -> u64 {
    sweep(storage, SweepOptions::new()).await.unwrap().removed
}

#[tokio::test(start_paused = true)]
async fn sweep_with_a_clock_that_is_ahead_keeps_payloads_of_waiting_jobs() {
    let storage = in_memory();
    let queue = storage.queue().await.unwrap();
    let _ = queue.send(&large("a")).ttl(HOUR * 2).await.unwrap();
    assert_eq!(removed(&seen_from(&storage, 24 * 400)).await, 0);
    assert_eq!(finish_all(&storage).await, (1, 1), "it runs, with its payload");
}

#[tokio::test(start_paused = true)]
async fn payload_of_a_sender_whose_clock_is_behind_is_kept_until_its_message_expires() {
    let storage = in_memory();
    let behind = seen_from(&storage, -24 * 400);
    let _ = behind.queue().await.unwrap().send(&large("a")).ttl(HOUR * 2).await.unwrap();
    assert_eq!((removed(&storage).await, payloads(&storage).await), (0, 1));
    sleep(HOUR * 27).await;
    assert_eq!((removed(&storage).await, payloads(&storage).await), (1, 0));
}

// SWP1
#[tokio::test(start_paused = true)]
async fn workers_that_live_for_less_than_the_interval_sweep() {
    let storage = in_memory();
    let queue = storage.queue().await.unwrap();
    let _ = queue.send(&large("a")).ttl(HOUR).await.unwrap();
    sleep(HOUR * 24 * 3).await;
    assert_eq!(payloads(&storage).await, 1);
    for _ in 0..20 {
        let handler = async |_: Task| Ok::<(), JobError>(());
        let built = worker(&storage).handle(handler).sweep_every(HOUR * 24).build().unwrap();
        let _ = built.run_until(sleep(HOUR * 12)).await.unwrap();
    }
    assert_eq!(payloads(&storage).await, 0);
}

// A queue that is disabled, that has partitions, or that may not be read was not counted to be empty, and
// ended the sweep of all others.
#[tokio::test(start_paused = true)]
async fn payloads_of_other_queues_are_swept_while_one_is_disabled() {
    for refusal in [StoreErrorKind::QueueDisabled, StoreErrorKind::Unsupported, StoreErrorKind::Unauthorized]
    {
        payloads_of_other_queues_are_swept(refusal).await;
    }
}

async fn payloads_of_other_queues_are_swept(refusal: StoreErrorKind) {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    faulty.plan_always(Operation::Put, Fault::Hang);
    for name in ["first", "second", "third"] {
        let queue = storage.queue_named::<Task>(name).await.unwrap();
        // A sender that dies leaves its payload.
        assert!(tokio::time::timeout(Duration::from_secs(1), queue.send(&large("a"))).await.is_err());
    }
    faulty.heal();
    sleep(HOUR * 24 * 9).await;
    faulty.on(Operation::QueueProperties, move |call| {
        (call.subject == "second").then_some(Fault::Refuse(refusal))
    });
    assert_eq!(sweep(&storage, drained()).await.unwrap().removed, 2);
    assert_eq!(payloads(&storage).await, 1, "that of the queue that is disabled stays");
}

/// Sends a job with a payload that never expires, and waits until the payload is old enough for a sweep.
async fn send_and_wait(storage: &Storage) -> Queue<Task> {
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    sleep(HOUR * 24 * 9).await;
    queue
}

// A queue that the storage of the blobs does not have counted as drained.
#[tokio::test(start_paused = true)]
async fn sweep_through_the_lender_of_blobs_leaves_payloads_of_the_borrower() {
    let lender = in_memory();
    let borrower = in_memory().with_blobs_of(&lender);
    let _ = send_and_wait(&borrower).await;
    for dry_run in [true, false] {
        let swept = sweep(&lender, drained().dry_run(dry_run)).await.unwrap();
        assert_eq!(swept.removed, 0, "{swept:?}");
        assert_eq!(swept.without_queue, 1, "{swept:?}");
    }
    assert_eq!(finish_all(&borrower).await, (1, 1), "it runs, with its payload");
}

#[tokio::test(start_paused = true)]
async fn payloads_of_a_deleted_queue_are_swept_once_it_is_created_again() {
    let storage = in_memory();
    let queue = send_and_wait(&storage).await;
    storage.queues().delete_queue(queue.name()).await.unwrap();
    let swept = sweep(&storage, drained()).await.unwrap();
    assert_eq!(swept.removed, 0, "{swept:?}");
    assert_eq!(swept.without_queue, 1, "{swept:?}");
    storage.queues().create_queue(queue.name(), &Metadata::new()).await.unwrap();
    let swept = sweep(&storage, drained()).await.unwrap();
    assert_eq!(swept.removed, 1, "{swept:?}");
    assert_eq!(swept.without_queue, 0, "{swept:?}");
    assert_eq!(payloads(&storage).await, 0);
}
