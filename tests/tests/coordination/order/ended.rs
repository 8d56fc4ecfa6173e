//! Messages of jobs in order that have ended: of a done one none becomes a dead letter.

use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Queue, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::worker;
use tokio::time::sleep;

use crate::order::records::{MINUTE, run, steps};
use crate::order::{Step, Watch, handle, logged, step};

/// Returns a storage with the message of a job that is done: its deletions got no answer, and its worker is gone.
async fn done_but_stored() -> (Storage, Queue<Step>) {
    let storage = logged();
    let faulty = Faulty::quiet(&storage);
    for operation in [Operation::Delete, Operation::DeleteAll] {
        faulty.plan_always(operation, Fault::LoseRequest(StoreErrorKind::Timeout));
    }
    let queue = steps(&storage).await;
    queue.send(&step("a", 0)).with(SendOptions::new().in_order().id("first")).await.unwrap();
    let watch = Watch::default();
    run(&faulty.storage(), &watch, 1).await;
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
    let once = Metadata::new().with("maxdeliveries", "1");
    storage.queues().set_queue_metadata(queue.name(), &once).await.unwrap();
    sleep(MINUTE * 60).await;
    (storage, queue)
}

/// Asserts that the message is gone, and that the job is still known to be done.
async fn assert_done(queue: &Queue<Step>) {
    assert_eq!(queue.dead_letters().unwrap().approximate_len().await.unwrap(), 0, "a done job is a letter");
    assert!(queue.is_empty().await.unwrap());
    let again = queue.send(&step("a", 0)).with(SendOptions::new().in_order().id("first")).await.unwrap();
    assert!(again.was_done());
}

#[tokio::test(start_paused = true)]
async fn message_of_a_done_job_in_order_is_no_dead_letter() {
    let (storage, queue) = done_but_stored().await;
    let built = worker(&storage).state(Watch::default()).handle(handle).build().unwrap();
    let report = built.run_until(sleep(MINUTE * 10)).await.unwrap();
    assert_eq!((report.dead_lettered, report.duplicates), (0, 1), "{report:?}");
    assert_done(&queue).await;
}

#[tokio::test(start_paused = true)]
async fn message_of_a_done_job_that_is_received_by_hand_is_no_dead_letter() {
    let (_storage, queue) = done_but_stored().await;
    assert!(queue.receive(Duration::from_secs(60)).await.unwrap().is_none());
    assert_done(&queue).await;
}
