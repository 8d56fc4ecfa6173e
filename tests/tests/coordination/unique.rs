//! Unique work when senders die and answers are lost, and the sweep of its records. In paused time on memory.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::clock::TokioClock;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::queue::SendUniqueOutcome;
use jobqueue::storage::ContainerName;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Queue, QueueMessage, Runtime, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::death;
use jobqueue_tests::jobs::in_memory;
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "reports", kind = "report")]
pub(super) struct Report {
    #[message(key)]
    pub(super) of: String,
}

pub(super) const HOUR: Duration = Duration::from_secs(3600);
pub(super) const MINUTE: Duration = Duration::from_secs(60);

pub(super) fn may() -> Report {
    Report { of: "may".into() }
}

pub(super) async fn reports(storage: &Storage) -> Queue<Report> {
    storage.clone().with_runtime(jobqueue_tests::jobs::runtime()).queue().await.unwrap()
}

pub(super) async fn delayed(queue: &Queue<Report>) -> SendUniqueOutcome {
    queue.send(&may()).unique_for(HOUR * 24).delay(HOUR).await.unwrap()
}

/// Receives and deletes the messages. Returns their ids.
pub(super) async fn sent(queue: &Queue<Report>) -> Vec<String> {
    let mut ids = Vec::new();
    while let Some(delivery) = queue.receive(Duration::ZERO).await.unwrap() {
        ids.push(delivery.info().id.to_string());
        delivery.complete().await.unwrap();
    }
    ids
}

// A send joined a job whose message was deleted.
#[tokio::test(start_paused = true)]
async fn clearing_a_queue_ends_the_windows_of_its_unique_work() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    assert!(delayed(&queue).await.is_sent());
    queue.clear().await.unwrap();
    assert!(delayed(&queue).await.is_sent());
    assert!(!delayed(&queue).await.is_sent());
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}

// clocks 29, 7: for a clock that is ahead, a window whose last minutes were left was over.
#[tokio::test(start_paused = true)]
async fn window_is_ended_by_a_process_whose_clock_is_ahead() {
    let storage = in_memory();
    let queue = storage.queue::<Report>().await.unwrap();
    let clock = TokioClock::at(storage.runtime().now() + MINUTE * 4);
    let other = storage.clone().with_runtime(Runtime::virtual_time(Arc::new(clock)));
    let ahead = other.queue::<Report>().await.unwrap();
    let job = may();
    let send = async || queue.send(&job).unique_for(HOUR).delay(HOUR * 2).await.unwrap().is_sent();
    assert!(send().await);
    sleep(HOUR - MINUTE * 3).await;
    assert!(!send().await, "the window is open");
    assert!(ahead.cancel_unique("may").await.unwrap());
    assert!(send().await);
    sleep(HOUR - MINUTE * 3).await;
    ahead.clear().await.unwrap();
    assert!(send().await);
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}

// I12b
#[tokio::test(start_paused = true)]
async fn crash_of_a_unique_send_blocks_nobody() {
    // The claim, the message, the record that it was sent; each performed or not.
    for (nth, performed) in (1..=3).flat_map(|nth| [(nth, false), (nth, true)]) {
        let at = format!("death at write {nth}, performed: {performed}");
        let storage = Storage::memory();
        let queue = reports(&storage).await;
        // Makes the container, so that each write is what it is meant to be.
        queue.send(&Report { of: "april".into() }).unique_for(HOUR).await.unwrap();
        assert_eq!(sent(&queue).await.len(), 1);

        let faulty = Faulty::new(&storage);
        let doomed = reports(&faulty.storage()).await;
        let writes = death::at_write(&faulty, nth, performed);
        assert!(timeout(Duration::from_secs(1), doomed.send(&may()).unique_for(HOUR)).await.is_err(), "{at}");
        assert_eq!(writes.count(), nth, "{at}");
        let next =
            timeout(Duration::from_secs(60), queue.send(&may()).unique_for(HOUR)).await.expect(&at).unwrap();
        let again = queue.send(&may()).unique_for(HOUR).await.unwrap();
        assert!(!again.is_sent() && again.id() == next.id(), "{at}");
        let mut ids = sent(&queue).await;
        let copies = ids.len();
        ids.dedup();
        assert_eq!(ids, [next.id()], "{at}: all copies are one job");
        // The message was stored, and its record does not say so.
        let doubt = (nth, performed) == (2, true) || (nth, performed) == (3, false);
        assert_eq!(copies, if doubt { 2 } else { 1 }, "{at}");
    }
}

// D5
#[tokio::test(start_paused = true)]
async fn of_twenty_senders_of_one_explicit_id_one_sends() {
    // Each call takes some time, so that all of them claim the key at once.
    let storage = Faulty::new(&Storage::memory()).storage();
    let queue = reports(&storage).await;
    let may = may();
    let send = || queue.send(&may).unique_for(HOUR).id("may-1").into_future();
    let all = futures_util::future::join_all((0..20).map(|_| send())).await;
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    assert_eq!(all.iter().filter(|one| one.is_sent()).count(), 1);
    assert!(all.iter().all(|one| one.id() == "may-1"));
    assert_eq!(sent(&queue).await, ["may-1"]);
}

// D10
#[tokio::test(start_paused = true)]
async fn failed_cancel_error_does_not_mention_sending() {
    let faulty = Faulty::new(&Storage::memory());
    let queue = reports(&faulty.storage()).await;
    delayed(&queue).await;
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    let error = queue.cancel_unique("may").await.unwrap_err();
    assert!(error.kind() == jobqueue::ErrorKind::Storage && error.is_retryable(), "{error:?}");
    assert!(error.to_string().contains("the job is not cancelled"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn lost_answers_do_not_send_twice_what_was_sent() {
    // Of the claim, and of the record that it was sent.
    for nth in [1, 2] {
        let storage = Storage::memory();
        let faulty = Faulty::new(&storage);
        let (queue, flaky) = (reports(&storage).await, reports(&faulty.storage()).await);
        queue.send(&Report { of: "april".into() }).unique_for(HOUR).await.unwrap();
        assert_eq!(sent(&queue).await.len(), 1);
        faulty.plan(Operation::PutBlob, nth, Fault::DropAnswer(StoreErrorKind::Timeout));
        let first = flaky.send(&may()).unique_for(HOUR).await.unwrap();
        let second = queue.send(&may()).unique_for(HOUR).await.unwrap();
        assert!(first.is_sent() && !second.is_sent() && first.id() == second.id(), "write {nth}");
        assert_eq!(sent(&queue).await, [first.id()], "write {nth}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_sweep_removes_records_whose_window_is_over_and_no_others() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    queue.send(&may()).unique_for(HOUR).await.unwrap();
    queue.send(&Report { of: "june".into() }).unique_for(HOUR * 24 * 30).await.unwrap();
    sleep(HOUR * 24 * 3).await;
    let swept = sweep(&storage, SweepOptions::new()).await.unwrap();
    assert_eq!(swept.seen, 2);
    assert_eq!(swept.removed, 1);
    assert_eq!(swept.failed, 0);
    let container = ContainerName::new("jobqueue-unique").unwrap();
    assert_eq!(storage.blobs().list_blobs(&container, "", None).await.unwrap().blobs.len(), 1);
    assert!(queue.send(&may()).unique_for(HOUR).await.unwrap().is_sent());
    assert!(!queue.send(&Report { of: "june".into() }).unique_for(HOUR).await.unwrap().is_sent());
}

/// The record is found after its window is long over, and used again before it is removed.
#[tokio::test(start_paused = true)]
async fn a_sweep_spares_a_record_that_is_used_again_meanwhile() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    queue.send(&may()).unique_for(HOUR).await.unwrap();
    sleep(HOUR * 24 * 3).await;
    let faulty = Faulty::new(&storage);
    faulty.plan(Operation::ListBlobs, 4, Fault::DelayAfter(Duration::from_secs(10)));
    let flaky = faulty.storage();
    let sweeping = tokio::spawn(async move { sweep(&flaky, SweepOptions::new()).await.unwrap() });
    sleep(Duration::from_secs(5)).await;
    assert!(queue.send(&may()).unique_for(HOUR).await.unwrap().is_sent());
    let swept = sweeping.await.unwrap();
    assert_eq!(swept.seen, 1);
    assert_eq!(swept.removed, 0);
    assert_eq!(swept.failed, 0);
    assert!(!queue.send(&may()).unique_for(HOUR).await.unwrap().is_sent());
}

#[tokio::test(start_paused = true)]
async fn a_sweep_counts_records_that_it_could_not_remove() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    let queue = reports(&storage).await;
    queue.send(&may()).unique_for(HOUR).await.unwrap();
    sleep(HOUR * 24 * 3).await;
    let options = || SweepOptions::new();
    for (operation, fault) in [
        (Operation::AcquireLease, Fault::Refuse(StoreErrorKind::LeaseAlreadyPresent)),
        (Operation::BlobProperties, Fault::Refuse(StoreErrorKind::Unavailable)),
        (Operation::DeleteBlob, Fault::Refuse(StoreErrorKind::Unavailable)),
    ] {
        faulty.plan(operation, 1, fault);
        let swept = sweep(&storage, options()).await.unwrap();
        assert_eq!(swept.seen, 1, "{operation:?}");
        assert_eq!(swept.removed, 0, "{operation:?}");
        assert_eq!(swept.failed, 1, "{operation:?}");
        // The lease of a sweep that stopped in the middle.
        sleep(Duration::from_secs(20)).await;
    }
    assert_eq!(sweep(&storage, options()).await.unwrap().removed, 1);
}

/// Senders wait for a sweep that has leased the record, also for one that died.
#[tokio::test(start_paused = true)]
async fn a_sender_waits_for_a_sweep_that_holds_the_record() {
    let storage = Storage::memory();
    let queue = reports(&storage).await;
    queue.send(&may()).unique_for(HOUR).await.unwrap();
    sleep(HOUR * 24 * 3).await;
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::BlobProperties, Fault::Hang);
    let flaky = faulty.storage();
    let swept = timeout(Duration::from_secs(5), sweep(&flaky, SweepOptions::new())).await;
    assert!(swept.is_err(), "the sweep was to die");
    assert!(queue.send(&may()).unique_for(HOUR).await.unwrap().is_sent());
}
