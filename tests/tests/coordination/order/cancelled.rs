//! Cancellations of jobs in order: of one that was sent again, of one in doubt, and of one whose payload is
//! in a blob.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Queue, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, worker};
use tokio::time::{Instant, timeout};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
const LOST_ANSWER: Fault = Fault::DropAnswer(StoreErrorKind::Timeout);
const LOST_REQUEST: Fault = Fault::LoseRequest(StoreErrorKind::Timeout);

/// Returns a storage where a log keeps the order.
fn logged() -> Faulty {
    Faulty::new(&in_memory())
}

async fn tasks(storage: &Storage) -> Queue<Task> {
    storage.queue().await.unwrap()
}

fn large() -> Task {
    Task { name: "a".into(), data: "x".repeat(100_000) }
}

fn tomorrow() -> SendOptions {
    SendOptions::new().in_order().id("x").delay(DAY)
}

async fn stored(storage: &Storage) -> u64 {
    tasks(storage).await.approximate_len().await.unwrap()
}

/// The first message is stored, and its send failed with an unknown outcome.
#[tokio::test(start_paused = true)]
async fn job_of_which_an_earlier_send_is_stored_is_not_certainly_cancelled() {
    let faulty = logged();
    let (storage, task) = (faulty.storage(), large());
    let queue = tasks(&storage).await;
    faulty.plan(Operation::Put, 1, LOST_ANSWER);
    faulty.plan(Operation::Put, 2, LOST_REQUEST);
    assert!(queue.send(&task).with(tomorrow()).await.unwrap_err().is_outcome_unknown());
    let second = queue.send(&task).with(tomorrow()).await.unwrap();
    let third = queue.send(&task).with(tomorrow()).await.unwrap();
    assert_eq!(stored(&storage).await, 3);
    let leftover = payloads(&storage).await - 3;
    assert!(queue.cancel(&second).await.unwrap_err().is_outcome_unknown());
    assert_eq!(stored(&storage).await, 2);
    assert_eq!(payloads(&storage).await, 2 + leftover, "the payload of the deleted message is deleted");
    assert!(queue.cancel(&third).await.unwrap(), "the log remembers the cancellation");
    assert_eq!(stored(&storage).await, 1, "a message keeps its payload or is deleted");
    assert_eq!(payloads(&storage).await, 1 + leftover);
}

/// The cancellation of a job that was sent again touches no message.
#[tokio::test(start_paused = true)]
async fn cancellation_that_deletes_nothing_leaves_its_unique_key_as_it_was() {
    let storage = logged().storage();
    let (queue, task) = (tasks(&storage).await, large());
    let unique = || queue.send(&task).unique_for(DAY * 2).with(tomorrow()).into_future();
    assert!(unique().await.unwrap().is_sent());
    let _ = queue.send(&task).with(tomorrow()).await.unwrap();
    assert!(queue.cancel_unique("a").await.unwrap_err().is_outcome_unknown());
    let began = Instant::now();
    assert!(!unique().await.unwrap().is_sent(), "it joins the job");
    assert!(began.elapsed() < Duration::from_secs(1), "the key is held");
    assert_eq!(stored(&storage).await, 2);
}

/// The canceller dies after its mark; the next job of the key completes the cancellation.
#[tokio::test(start_paused = true)]
async fn job_that_completes_a_cancellation_deletes_the_payload() {
    for fault in [Fault::Hang, Fault::HangAfter] {
        let faulty = logged();
        let storage = faulty.storage();
        let queue = tasks(&storage).await;
        let sent = queue.send(&large()).with(tomorrow()).await.unwrap();
        let _ = queue.send(&Task { data: String::new(), ..large() }).in_order().await.unwrap();
        faulty.plan(Operation::Delete, 1, fault);
        assert!(timeout(Duration::from_secs(20), queue.cancel(&sent)).await.is_err(), "it was to die");
        assert_eq!(payloads(&storage).await, 1);
        let next = worker(&storage).handle(async |_: Task| Ok::<_, jobqueue::JobError>(()));
        let report = next.build().unwrap().run_until(after(2 * MINUTE.as_secs())).await.unwrap();
        assert_eq!(report.completed, 1, "{fault:?}");
        assert_eq!(payloads(&storage).await, 0, "{fault:?}");
    }
}

/// The job that completes a cancellation deletes the message, and cannot write that.
#[tokio::test(start_paused = true)]
async fn completed_cancellation_leaves_no_payload_if_its_end_is_not_written() {
    let faulty = logged();
    let storage = faulty.storage();
    let queue = tasks(&storage).await;
    let sent = queue.send(&large()).with(tomorrow()).await.unwrap();
    let _ = queue.send(&Task { data: String::new(), ..large() }).in_order().await.unwrap();
    faulty.plan(Operation::Delete, 1, Fault::Hang);
    assert!(timeout(Duration::from_secs(20), queue.cancel(&sent)).await.is_err(), "it was to die");
    let is_deleted = Arc::<AtomicBool>::default();
    let refuses = Arc::clone(&is_deleted);
    faulty.on(Operation::Delete, move |_| {
        is_deleted.store(true, Ordering::Relaxed);
        None
    });
    let refusal = Fault::Refuse(StoreErrorKind::Unavailable);
    faulty.on(Operation::PutBlob, move |_| refuses.load(Ordering::Relaxed).then_some(refusal));
    let next = worker(&storage).handle(async |_: Task| Ok::<_, jobqueue::JobError>(()));
    let _ = next.build().unwrap().run_until(after(2 * MINUTE.as_secs())).await.unwrap();
    assert_eq!((stored(&storage).await, payloads(&storage).await), (1, 0));
}

/// One of many waiting deliveries deletes the message of a cancellation that was abandoned.
#[tokio::test(start_paused = true)]
async fn abandoned_cancellation_is_completed_by_one_of_the_waiting_deliveries() {
    let faulty = logged();
    let storage = faulty.storage();
    let queue = tasks(&storage).await;
    let sent = queue.send(&large()).with(tomorrow()).await.unwrap();
    for _ in 0..20 {
        let _ = queue.send(&Task { data: String::new(), ..large() }).in_order().await.unwrap();
    }
    faulty.plan(Operation::Delete, 1, Fault::Hang);
    assert!(timeout(Duration::from_secs(20), queue.cancel(&sent)).await.is_err(), "it was to die");
    let throttled = Fault::ThrottleInDoubt { retry_after: Duration::from_secs(5), applied: false };
    faulty.plan_always(Operation::Delete, throttled);
    let next = worker(&storage).concurrency(20).handle(async |_: Task| Ok::<_, jobqueue::JobError>(()));
    let _ = next.build().unwrap().run_until(after(120)).await.unwrap();
    let tries = faulty.calls_of(Operation::Delete) - 1;
    // Each of them asks some six times in half a minute, and they take turns of 45 seconds.
    assert!((1..=20).contains(&tries), "{tries} deletions");
}

/// The first message is due tomorrow. The canceller deletes it, and cannot write that, or dies; the job is
/// sent again without a delay.
#[tokio::test(start_paused = true)]
async fn job_that_is_sent_again_runs_although_its_cancellation_was_not_ended() {
    for dies in [false, true] {
        let faulty = logged();
        let storage = faulty.storage();
        let queue = tasks(&storage).await;
        let sent = queue.send(&large()).with(tomorrow()).await.unwrap();
        let is_throttled = Arc::<AtomicBool>::default();
        let (deletes, refuses) = (Arc::clone(&is_throttled), Arc::clone(&is_throttled));
        let mut is_first = true;
        faulty.on(Operation::Delete, move |_| {
            let begins = std::mem::take(&mut is_first);
            deletes.fetch_or(begins, Ordering::Relaxed);
            (dies && begins).then_some(Fault::HangAfter)
        });
        let refusal = Fault::Refuse(StoreErrorKind::Unavailable);
        faulty.on(Operation::PutBlob, move |_| refuses.load(Ordering::Relaxed).then_some(refusal));
        match timeout(MINUTE, queue.cancel(&sent)).await {
            Ok(cancelled) => assert!(!dies && cancelled.unwrap()),
            Err(_) => assert!(dies, "the cancellation hangs"),
        }
        is_throttled.store(false, Ordering::Relaxed);
        let again = SendOptions::new().in_order().id("x");
        let _ = queue.send(&large()).with(again).await.unwrap();
        let worker = worker(&storage).handle(async |_: Task| Ok::<_, jobqueue::JobError>(()));
        let report = worker.build().unwrap().run_until(after(15 * MINUTE.as_secs())).await.unwrap();
        assert_eq!(report.completed, 1, "dies: {dies}");
        assert_eq!(stored(&storage).await, 0, "dies: {dies}");
    }
}

/// The log remembers 256 ended jobs. The repetition has the time of the message, and nothing else.
// review 24, coordination C6
#[tokio::test(start_paused = true)]
async fn cancellation_that_is_repeated_is_certain_although_the_log_has_forgotten_the_job() {
    let faulty = logged();
    let storage = faulty.storage();
    let (queue, task) = (tasks(&storage).await, Task { name: "a".into(), data: String::new() });
    assert!(queue.send(&task).unique_for(DAY * 2).with(tomorrow()).await.unwrap().is_sent());
    faulty.plan(Operation::Delete, 1, Fault::HangAfter);
    assert!(timeout(MINUTE / 3, queue.cancel_unique("a")).await.is_err(), "it was to die");
    // The first of them completes the cancellation.
    let next = queue.send_all(&vec![task; 300]).with(SendOptions::new().in_order()).await.unwrap();
    assert!(next.iter().all(Result::is_ok));
    let worker = worker(&storage).handle(async |_: Task| Ok::<_, jobqueue::JobError>(()));
    let report = worker.build().unwrap().run_until(after(3_600)).await.unwrap();
    assert_eq!((report.completed, stored(&storage).await), (300, 0));
    assert!(queue.cancel_unique("a").await.unwrap());
}
