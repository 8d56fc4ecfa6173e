//! Payloads in blobs while their storage refuses, loses answers, or has no container yet: I3, I15, F48.

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{JobError, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, outcomes, task, worker};

fn large() -> Task {
    Task { data: "x".repeat(100_000), ..task("a") }
}

/// Returns a storage whose container of payloads exists.
async fn prepared() -> (Faulty, jobqueue::Queue<Task>) {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&large()).await.unwrap();
    (faulty, queue)
}

// I3
#[tokio::test(start_paused = true)]
async fn refused_payload_is_not_retried_nor_its_message_sent() {
    let (faulty, queue) = prepared().await;
    let calls = |operation| faulty.calls_of(operation);
    let (containers, puts) = (calls(Operation::CreateContainer), calls(Operation::PutBlob));
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unauthorized));
    let error = queue.send(&large()).await.unwrap_err();
    assert!(error.is_rejected(), "{error}");
    assert_eq!(calls(Operation::CreateContainer) - containers, 0);
    assert_eq!(calls(Operation::PutBlob) - puts, 1);
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}

// I15, F48
#[tokio::test(start_paused = true)]
async fn payload_without_answer_is_written_once_more() {
    let (faulty, queue) = prepared().await;
    let puts = faulty.calls_of(Operation::PutBlob);
    faulty.plan_always(Operation::PutBlob, Fault::LoseRequest(StoreErrorKind::Timeout));
    let error = queue.send(&large()).await.unwrap_err();
    assert!(error.is_rejected(), "without its payload a message is not sent: {error}");
    assert_eq!(faulty.calls_of(Operation::PutBlob) - puts, 2);
    faulty.heal();
    // Written, its answer lost: what is there under the new name is ours.
    faulty.plan(Operation::PutBlob, 1, Fault::DropAnswer(StoreErrorKind::Timeout));
    let puts = faulty.calls_of(Operation::PutBlob);
    let _ = queue.send(&large()).await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 2);
    assert_eq!(faulty.calls_of(Operation::PutBlob) - puts, 2);
}

#[tokio::test(start_paused = true)]
async fn payload_over_the_limit_reaches_no_handler() {
    // In the message, and in a blob.
    for freight in [1_000, 100_000] {
        let task = Task { data: "x".repeat(freight), ..task("a") };
        let size = serde_json::to_vec(&task).unwrap().len() as u64;
        for (limit, outcome) in [(size, "completed"), (size - 1, "dead_lettered")] {
            let faulty = Faulty::new(&memory::open());
            let _ = faulty.storage().queue::<Task>().await.unwrap().send(&task).await.unwrap();
            let (log, listen) = outcomes();
            let handler = |_: Task| async { Ok::<(), JobError>(()) };
            let worker = worker(&faulty.storage()).max_payload_bytes(limit).handle(handler).on_event(listen);
            let _ = worker.build().unwrap().run_until(after(60)).await.unwrap();
            assert_eq!(*log.lock().unwrap(), [outcome], "{size} bytes where {limit} are accepted");
            // Once for the handler, or once for the dead letter.
            let is_stored = freight == 100_000;
            assert_eq!(faulty.calls_of(Operation::GetBlob), usize::from(is_stored), "{size} of {limit}");
        }
    }
}
