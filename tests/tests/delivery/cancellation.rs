//! The answers of a cancellation: it returns true only if the job certainly does not run.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use jobqueue::clock::TokioClock;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{ExpiredReceipt, GetMessages, Operation, StoreErrorKind};
use jobqueue::{JobError, Queue, QueueName, Runtime, SendOptions, Storage};
use jobqueue_admin::{AccessLevel, Admin, Cancellation, JobReference};
use jobqueue_testing::faults::{Call, Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, payloads, task, worker};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const LOST_ANSWER: Fault = Fault::DropAnswer(StoreErrorKind::Timeout);
const LOST_REQUEST: Fault = Fault::LoseRequest(StoreErrorKind::Timeout);

async fn tasks(faulty: &Faulty) -> Queue<Task> {
    faulty.storage().queue::<Task>().await.unwrap()
}

// B24: one copy is cancelled, the other runs.
#[tokio::test(start_paused = true)]
async fn a_job_that_may_be_stored_twice_is_not_certainly_cancelled() {
    let faulty = Faulty::new(&in_memory());
    let queue = tasks(&faulty).await;
    faulty.plan(Operation::Put, 1, LOST_ANSWER);
    let sent = queue.send(&task("a")).await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 2);
    assert!(queue.cancel(&sent).await.unwrap_err().is_outcome_unknown());

    faulty.plan(Operation::Put, 1, LOST_ANSWER);
    let delayed = SendOptions::new().delay(HOUR);
    assert!(queue.send(&task("b")).unique_for(2 * HOUR).with(delayed).await.unwrap().is_sent());
    assert!(queue.cancel_unique("b").await.unwrap_err().is_outcome_unknown());
}

// A deletion that did not arrive, and then a worker that has done the job.
#[tokio::test(start_paused = true)]
async fn a_job_that_was_done_meanwhile_is_not_called_cancelled() {
    let inner = in_memory();
    let faulty = Faulty::new(&inner);
    let queue = tasks(&faulty).await;
    let sent = queue.send(&task("a")).await.unwrap();
    faulty.plan(Operation::Delete, 1, LOST_REQUEST);
    faulty.on(Operation::Delete, move |call| {
        if call.nth == 2 {
            let (store, name) = (inner.queues(), QueueName::new("tasks").unwrap());
            let got = store.get(&name, GetMessages::new(1, HOUR)).now_or_never().unwrap().unwrap();
            let done = store.delete(&name, &got.messages[0].message, ExpiredReceipt::Refuse);
            done.now_or_never().unwrap().unwrap();
        }
        None
    });
    let cancelled = queue.cancel(&sent).await;
    assert!(cancelled.unwrap_err().is_outcome_unknown());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_nobody_can_have_received_is_certainly_cancelled() {
    let faulty = Faulty::new(&in_memory());
    let queue = tasks(&faulty).await;
    let delayed = || SendOptions::new().delay(HOUR);
    let sent = queue.send(&task("a")).with(delayed()).await.unwrap();
    faulty.plan(Operation::Delete, 1, LOST_ANSWER);
    assert!(queue.cancel(&sent).await.unwrap());
    assert!(queue.send(&task("b")).unique_for(2 * HOUR).with(delayed()).await.unwrap().is_sent());
    faulty.plan(Operation::Delete, 1, LOST_ANSWER);
    assert!(queue.cancel_unique("b").await.unwrap());
}

/// The clock of its sender is three minutes ahead, so that the record of its message shows a later time.
#[tokio::test(start_paused = true)]
async fn a_job_that_ran_before_the_time_that_its_sender_noted_is_not_called_cancelled() {
    let inner = in_memory();
    let ahead = Arc::new(TokioClock::at(SystemTime::now() + 3 * MINUTE));
    let sender = inner.clone().with_runtime(Runtime::virtual_time(ahead)).queue::<Task>().await.unwrap();
    let sent = sender.send(&task("a")).with(SendOptions::new().delay(HOUR)).await.unwrap();
    after(3_601).await;
    let faulty = Faulty::new(&inner);
    faulty.plan(Operation::Delete, 1, LOST_REQUEST);
    faulty.on(Operation::Delete, move |call| {
        if call.nth == 2 {
            let (store, name) = (inner.queues(), QueueName::new("tasks").unwrap());
            let got = store.get(&name, GetMessages::new(1, HOUR)).now_or_never().unwrap().unwrap();
            let done = store.delete(&name, &got.messages[0].message, ExpiredReceipt::Refuse);
            done.now_or_never().unwrap().unwrap();
        }
        None
    });
    assert!(tasks(&faulty).await.cancel(&sent).await.unwrap_err().is_outcome_unknown());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_job_leaves_no_payload() {
    // The order of keys is kept by a log on the first, and by the storage itself on the second.
    for storage in [Faulty::new(&in_memory()).storage(), in_memory()] {
        let queue = storage.queue::<Task>().await.unwrap();
        let large = || Task { name: "a".into(), data: "x".repeat(100_000) };
        let plain = queue.send(&large()).await.unwrap();
        let ordered = queue.send(&large()).in_order().await.unwrap();
        assert!(queue.send(&large()).unique_for(HOUR).await.unwrap().is_sent());
        assert_eq!(payloads(&storage).await, 3);
        assert!(queue.cancel(&plain).await.unwrap() && queue.cancel(&ordered).await.unwrap());
        assert!(queue.cancel_unique("a").await.unwrap());
        assert_eq!(payloads(&storage).await, 0);
    }
}

// B14
#[tokio::test(start_paused = true)]
async fn a_throttled_cancellation_is_tried_again() {
    for (applied_at, is_certain) in [(None, true), (Some(3), false)] {
        let faulty = Faulty::new(&in_memory());
        let queue = tasks(&faulty).await;
        let sent = queue.send(&task("a")).await.unwrap();
        for nth in 1..=4 {
            let (retry_after, applied) = (Duration::from_secs(5), applied_at == Some(nth));
            faulty.plan(Operation::Delete, nth, Fault::ThrottleInDoubt { retry_after, applied });
        }
        let cancelled = queue.cancel(&sent).await;
        // The message is gone; a worker may have been faster.
        assert_eq!(cancelled.is_ok_and(|cancelled| cancelled), is_certain, "{applied_at:?}");
        assert!(queue.is_empty().await.unwrap());
    }
}

/// The sender that died has stored its message; the next send is refused.
#[tokio::test(start_paused = true)]
async fn a_refused_successor_does_not_free_the_key_of_a_stored_job() {
    let faulty = Faulty::new(&in_memory());
    let queue = tasks(&faulty).await;
    faulty.plan(Operation::Put, 1, Fault::HangAfter);
    let (dead, window) = (task("a"), 2 * HOUR);
    assert!(
        tokio::time::timeout(Duration::from_secs(1), queue.send(&dead).unique_for(window)).await.is_err()
    );
    let stored = queue.receive(Duration::from_secs(1)).await.unwrap().unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    faulty.plan(Operation::Put, 1, Fault::Refuse(StoreErrorKind::Unauthorized));
    assert!(queue.send(&dead).unique_for(window).await.unwrap_err().is_rejected());
    let next = queue.send(&dead).unique_for(window).await.unwrap();
    assert_eq!(next.id(), stored.info().id.as_ref());
    stored.complete().await.unwrap();
}

fn operator(storage: &Storage) -> Admin {
    Admin::builder(storage.clone()).access(AccessLevel::Operate).operator("ada").build()
}

/// Sends a job whose message is stored twice and comes after two minutes, and cancels it by its id.
async fn cancelled_with_two_messages(faulty: &Faulty) -> JobReference {
    let queue = tasks(faulty).await;
    faulty.plan(Operation::Put, 1, LOST_ANSWER);
    let delayed = SendOptions::new().id("twice").delay(Duration::from_secs(120));
    let _ = queue.send(&task("a")).with(delayed).await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 2);
    after(2).await;
    let job = JobReference::new("tasks", "twice");
    let _ = operator(&faulty.storage()).cancel(&job).await.unwrap();
    job
}

/// Runs a worker that learns of cancellations. Returns the numbers of jobs that it completed and of dead
/// letters that it wrote.
async fn run_for(storage: &Storage, seconds: u64) -> (u64, u64) {
    let builder = worker(storage).presence(Duration::from_secs(15)).concurrency(1);
    let worker = builder.handle(async |_: Task| Ok::<_, JobError>(())).build().unwrap();
    let report = worker.run_until(after(seconds)).await.unwrap();
    (report.completed, report.dead_lettered)
}

#[tokio::test(start_paused = true)]
async fn no_message_of_a_job_runs_that_an_operator_cancelled() {
    let faulty = Faulty::new(&in_memory());
    let job = cancelled_with_two_messages(&faulty).await;
    assert_eq!(run_for(&faulty.storage(), 600).await, (0, 2));
    let admin = operator(&faulty.storage());
    assert_eq!(admin.cancellation(&job).await.unwrap(), Cancellation::Cancelled);
    // The result is kept for as long as the request, and neither concerns the job that an operator puts back.
    after(3 * 86_400).await;
    let letters = tasks(&faulty).await.dead_letters().unwrap();
    let redriven = letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len() as u64;
    assert!(redriven > 0);
    assert_eq!(run_for(&faulty.storage(), 600).await, (redriven, 0));
    assert_eq!(admin.cancellation(&job).await.unwrap(), Cancellation::Cancelled);
}

/// The worker dies after the copy of the cancelled job; then the copy is purged.
#[tokio::test(start_paused = true)]
async fn a_cancelled_job_whose_dead_letter_was_purged_is_not_called_completed() {
    let faulty = Faulty::new(&in_memory());
    let queue = tasks(&faulty).await;
    let delayed = SendOptions::new().id("once").delay(Duration::from_secs(120));
    let _ = queue.send(&task("a")).with(delayed).await.unwrap();
    after(2).await;
    let (admin, job) = (operator(&faulty.storage()), JobReference::new("tasks", "once"));
    let _ = admin.cancel(&job).await.unwrap();
    faulty.plan_always(Operation::Delete, Fault::LoseRequest(StoreErrorKind::Unavailable));
    assert_eq!(run_for(&faulty.storage(), 130).await, (0, 1));
    faulty.heal();
    assert_eq!(
        queue
            .dead_letters()
            .unwrap()
            .purge(DeadLetterOptions::new().filter(|_| true))
            .await
            .unwrap()
            .deleted
            .len(),
        1
    );
    let _ = run_for(&faulty.storage(), 600).await;
    assert!(queue.is_empty().await.unwrap());
    assert_eq!(admin.cancellation(&job).await.unwrap(), Cancellation::Cancelled);
}

// C9
#[tokio::test(start_paused = true)]
async fn jobs_that_an_operator_cancelled_do_not_run_however_many_they_are() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..100 {
        let delayed = SendOptions::new().id(number.to_string()).delay(Duration::from_secs(120));
        let _ = queue.send(&task("a")).with(delayed).await.unwrap();
    }
    // A request counts for jobs that were sent before it, in whole seconds.
    after(2).await;
    let admin = operator(&storage);
    // Most of them are for jobs that have ended.
    for number in 0..12_000 {
        let _ = admin.cancel(&JobReference::new("tasks", number.to_string())).await.unwrap();
    }
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let handler = move |_: Task| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, JobError>(()) }
    };
    let builder = worker(&storage).presence(Duration::from_secs(15)).rejections_per_second(1);
    let report = builder.handle(handler).build().unwrap().run_until(after(170)).await.unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 0);
    assert_eq!(report.dead_lettered, 100, "{report:?}");
}

// An operator wants to cancel it too, while the worker deletes a second message of it, which waited behind
// another job of its key. It never ran.
#[tokio::test(start_paused = true)]
async fn job_in_order_that_its_sender_cancelled_is_not_called_completed() {
    let faulty = Faulty::new(&in_memory());
    let (storage, queue) = (faulty.storage(), tasks(&faulty).await);
    let _ = queue.send(&task("a")).in_order().await.unwrap();
    faulty.plan(Operation::Put, 1, LOST_ANSWER);
    let sent = queue.send(&task("a")).in_order().await.unwrap();
    faulty.on(Operation::Get, |call| (call.nth > 1).then_some(Fault::Refuse(StoreErrorKind::Unavailable)));
    // The first deletes the message that its sender knows.
    let slow = Fault::DelayBefore(Duration::from_secs(10));
    faulty.on(Operation::Delete, move |call| (call.nth > 1).then_some(slow));
    let handler = async |_: Task| {
        after(60).await;
        Ok::<_, JobError>(())
    };
    let built =
        worker(&storage).concurrency(2).presence(Duration::from_secs(1)).handle(handler).build().unwrap();
    let (admin, job) = (
        Admin::builder(storage.clone()).access(AccessLevel::Operate).build(),
        JobReference::new("tasks", sent.id()),
    );
    let cancelling = async {
        after(3).await;
        assert!(queue.cancel(&sent).await.unwrap_err().is_outcome_unknown(), "it was stored twice");
        after(5).await;
        assert_eq!(admin.cancel(&job).await.unwrap().workers, 1);
        after(100).await;
    };
    let report = built.run_until(cancelling).await.unwrap();
    assert_eq!((report.completed, report.duplicates), (1, 1), "{report:?}");
    assert_eq!(admin.cancellation(&job).await.unwrap(), Cancellation::Cancelled);
}

// round 30, core 4: it waited in memory for its turn, and learned of it after up to ten minutes.
#[tokio::test(start_paused = true)]
async fn job_that_waits_for_its_turn_ends_soon_after_its_cancellation() {
    let faulty = Faulty::new(&in_memory());
    let (storage, queue) = (faulty.storage(), tasks(&faulty).await);
    let _ = queue.send(&task("a")).in_order().await.unwrap();
    let _ = queue.send(&task("a")).id("waits").in_order().await.unwrap();
    // It takes the slot that the second leaves, which must end without one.
    let _ = queue.send(&task("b")).await.unwrap();
    let handler = async |_: Task| {
        after(3_600).await;
        Ok::<_, JobError>(())
    };
    let built =
        worker(&storage).concurrency(2).presence(Duration::from_secs(1)).handle(handler).build().unwrap();
    let (admin, job) = (operator(&storage), JobReference::new("tasks", "waits"));
    let cancelling = async {
        after(30).await;
        let _ = admin.cancel(&job).await.unwrap();
        after(30).await;
        assert_eq!(admin.cancellation(&job).await.unwrap(), Cancellation::Cancelled);
    };
    let report = built.run_until(cancelling).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (0, 1), "{report:?}");
}

// review of round 30, B1: all were dead-lettered at once, each with a copy of its payload in memory.
#[tokio::test(start_paused = true)]
async fn jobs_that_wait_for_their_turn_end_few_at_a_time_after_their_cancellation() {
    const SECOND: Duration = Duration::from_secs(1);
    let faulty = Faulty::new(&in_memory());
    let (storage, queue) = (faulty.storage(), tasks(&faulty).await);
    let large = Task { name: "a".into(), data: "x".repeat(100_000) };
    for number in 0..41 {
        let _ = queue.send(&large).id(number.to_string()).in_order().await.unwrap();
    }
    let is_payload = |call: &Call| call.subject.contains("jobqueue-payloads");
    faulty.on(Operation::GetBlob, move |call| is_payload(call).then_some(Fault::DelayAfter(SECOND)));
    let handler = async |_: Task| {
        after(3_600).await;
        Ok::<_, JobError>(())
    };
    let built = worker(&storage).concurrency(2).presence(SECOND).handle(handler).build().unwrap();
    let admin = operator(&storage);
    let cancelling = async {
        after(30).await;
        for number in 1..41 {
            let _ = admin.cancel(&JobReference::new("tasks", number.to_string())).await.unwrap();
        }
        after(300).await;
    };
    let report = built.run_until(cancelling).await.unwrap();
    assert_eq!(report.dead_lettered, 40, "{report:?}");
    let calls = faulty.calls();
    let loads = calls.iter().filter(|call| call.operation == Operation::GetBlob && is_payload(call));
    let loads: Vec<_> = loads.map(|call| call.at).collect();
    let within =
        |from: tokio::time::Instant| loads.iter().filter(|at| (from..from + SECOND).contains(*at)).count();
    let most = loads.iter().map(|at| within(*at)).max();
    assert!(most <= Some(4), "{most:?} payloads were copied at a time");
}

// AU20-4: it was cancelled while its payload came.
#[tokio::test(start_paused = true)]
async fn job_that_is_cancelled_during_its_download_does_not_begin() {
    let faulty = Faulty::new(&in_memory());
    let (storage, queue) = (faulty.storage(), tasks(&faulty).await);
    let large = Task { name: "a".into(), data: "x".repeat(100_000) };
    let _ = queue.send(&large).id("slow").in_order().await.unwrap();
    after(2).await;
    let (reads, is_payload) =
        (Arc::new(AtomicUsize::new(0)), |call: &Call| call.subject.contains("jobqueue-payloads"));
    let counted = Arc::clone(&reads);
    let slow = move |call: &Call| is_payload(call).then(|| counted.fetch_add(1, Ordering::SeqCst));
    faulty.on(Operation::GetBlob, move |call| slow(call).map(|_| Fault::DelayAfter(MINUTE)));
    let handler = async |_: Task| Ok::<_, JobError>(());
    let built = worker(&storage).presence(Duration::from_secs(1)).handle(handler).build().unwrap();
    let admin = operator(&storage);
    let operator = async {
        after(5).await;
        let _ = admin.cancel(&JobReference::new("tasks", "slow")).await.unwrap();
        after(20).await;
        assert_eq!(reads.load(Ordering::SeqCst), 2, "the dead letter copies it, in place of the download");
        after(300).await;
    };
    let report = built.run_until(operator).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (0, 1), "{report:?}");
}

// The record of a worker is written, and requests are read, by a task that nobody begins anew.
#[tokio::test(start_paused = true)]
async fn panic_of_the_storage_ends_no_record_of_a_worker() {
    let faulty = Faulty::new(&in_memory());
    let _ = tasks(&faulty).await.send(&task("a")).id("a").await.unwrap();
    for operation in [Operation::PutBlob, Operation::ListBlobs] {
        let mut is_first = true;
        faulty.on(operation, move |_| {
            assert!(!std::mem::take(&mut is_first), "boom");
            None
        });
    }
    let handler = async |_: Task| {
        std::future::pending::<()>().await;
        Ok::<_, JobError>(())
    };
    let built = worker(&faulty.storage()).presence(Duration::from_secs(1)).handle(handler).build().unwrap();
    let admin = operator(&faulty.storage());
    let cancelling = async {
        after(20).await;
        let _ = admin.cancel(&JobReference::new("tasks", "a")).await.unwrap();
        after(60).await;
    };
    let report = built.run_until(cancelling).await.unwrap();
    assert_eq!(report.dead_lettered, 1, "{report:?}");
}
