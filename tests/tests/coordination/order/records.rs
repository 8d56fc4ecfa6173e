//! The group logs when senders, cancellers and storages fail half-way: no key is blocked for good, and no job
//! is swallowed. On memory, in paused time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{ErrorKind, JobError, JobInfo, Queue, SendOptions, Storage};
use jobqueue_testing::faults::{Call, Fault, Faulty};
use jobqueue_tests::jobs::{Task, task, worker};
use tokio::time::{Instant, sleep, timeout};

use crate::order::{Step, Watch, handle, logged, send, step};

pub(super) const MINUTE: Duration = Duration::from_secs(60);
const LOST: Fault = Fault::DropAnswer(StoreErrorKind::Timeout);

pub(super) async fn steps(storage: &Storage) -> Queue<Step> {
    storage.queue::<Step>().await.unwrap()
}

/// Runs a worker until this number of steps has ended. Returns the time it took.
pub(super) async fn run(storage: &Storage, watch: &Watch, ends: usize) -> Duration {
    let began = Instant::now();
    let worker = worker(storage).state(watch.clone()).handle(handle).build().unwrap();
    let ended = timeout(MINUTE * 180, worker.run_until(watch.ends(ends))).await;
    let _ = ended.unwrap_or_else(|_| panic!("blocked: {watch:?}")).unwrap();
    began.elapsed()
}

/// Runs a worker for a while.
async fn run_for(storage: &Storage, watch: &Watch, time: Duration) {
    let worker = worker(storage).state(watch.clone()).handle(handle).build().unwrap();
    let _ = worker.run_until(sleep(time)).await.unwrap();
}

fn id(id: &str) -> SendOptions {
    SendOptions::new().in_order().id(id)
}

// B4: the sender heard of its message only when that had come to its end.
#[tokio::test(start_paused = true)]
async fn a_job_that_died_before_its_send_returned_blocks_no_key() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    send(&queue, &step("other", 0)).await;
    // The sender's writes after the put are slow.
    let puts = faulty.clone();
    faulty.on(Operation::PutBlob, move |_| {
        (puts.calls_of(Operation::Put) == 2).then_some(Fault::DelayBefore(Duration::from_secs(5)))
    });
    let reject = |_: Step| async { Err::<(), _>(JobError::dead_letter("never")) };
    let dying = worker(&storage).handle(reject).build().unwrap();
    let dying = tokio::spawn(dying.run_until(sleep(Duration::from_secs(10))));
    let first = step("a", 0);
    queue.send(&first).with(id("first")).await.unwrap();
    assert_eq!(dying.await.unwrap().unwrap().dead_lettered, 2);
    send(&queue, &step("a", 1)).await;
    let watch = Watch::default();
    assert!(run(&storage, &watch, 1).await < Duration::from_secs(10));
    assert_eq!(watch.begun("a"), [1]);
    // Redriven, it runs.
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 2);
    assert!(run(&storage, &watch, 3).await < Duration::from_secs(10));
    assert_eq!(watch.begun("a"), [1, 0]);
    assert!(queue.is_empty().await.unwrap());
}

// B4: it had announced its job.
#[tokio::test(start_paused = true)]
async fn a_sender_that_died_before_its_put_holds_up_its_key_for_a_while() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    faulty.plan(Operation::Put, 1, Fault::Hang);
    assert!(timeout(Duration::from_secs(5), send(&queue, &step("a", 0))).await.is_err());
    send(&queue, &step("a", 1)).await;
    let watch = Watch::default();
    let took = run(&storage, &watch, 1).await;
    assert!(took < MINUTE * 3, "{took:?}");
    assert_eq!(watch.begun("a"), [1]);
}

// B23
#[tokio::test(start_paused = true)]
async fn job_sent_again_after_an_error_runs_whatever_write_was_lost() {
    for (nth, fault) in [1, 2].into_iter().flat_map(|nth| {
        [LOST, Fault::LoseRequest(StoreErrorKind::Timeout), Fault::Refuse(StoreErrorKind::Unauthorized)]
            .map(|fault| (nth, fault))
    }) {
        let at = format!("write {nth}: {fault:?}");
        let storage = logged();
        let faulty = Faulty::new(&storage);
        let queue = steps(&faulty.storage()).await;
        send(&queue, &step("other", 0)).await;
        let before = faulty.calls_of(Operation::PutBlob) as u64;
        faulty.plan(Operation::PutBlob, nth, fault);
        let flaky = faulty.clone();
        let heal = tokio::spawn(async move {
            sleep(Duration::from_secs(2)).await;
            flaky.heal();
        });
        faulty.on(Operation::PutBlob, {
            let faulty = faulty.clone();
            // The storage of blobs fails from the lost write on.
            move |call| {
                if call.nth == before + nth {
                    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unavailable));
                    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
                }
                None
            }
        });
        let first = step("a", 0);
        let mut told = queue.send(&first).with(id("first")).await;
        heal.await.unwrap();
        while let Err(error) = told {
            assert!(error.is_rejected() || error.is_outcome_unknown(), "{at}: {error:?}");
            told = queue.send(&first).with(id("first")).await;
        }
        send(&queue, &step("a", 1)).await;
        let watch = Watch::default();
        let took = run(&storage, &watch, 3).await;
        assert_eq!(watch.begun("a"), [0, 1], "{at}");
        assert!(took < MINUTE, "{at}: {took:?}");
    }
}

// B24
#[tokio::test(start_paused = true)]
async fn a_job_whose_send_was_repeated_is_not_called_cancelled_and_no_copy_of_it_runs() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    faulty.plan(Operation::Put, 1, LOST);
    let first = step("a", 0);
    let sent = queue.send(&first).with(id("first").delay(MINUTE)).await.unwrap();
    send(&queue, &step("a", 1)).await;
    assert_eq!(queue.approximate_len().await.unwrap(), 3, "two copies and the next");
    assert!(queue.cancel(&sent).await.unwrap_err().is_outcome_unknown());
    let watch = Watch::default();
    run_for(&storage, &watch, MINUTE * 10).await;
    assert_eq!(watch.begun("a"), [1]);
    assert!(queue.is_empty().await.unwrap());
    // Sent again, it is wanted again.
    queue.send(&first).with(id("first")).await.unwrap();
    run(&storage, &watch, 2).await;
    assert_eq!(watch.begun("a"), [1, 0]);
}

/// The mark of the cancellation may stand: the next job of the key would delete the message.
#[tokio::test(start_paused = true)]
async fn a_cancellation_whose_mark_may_stand_is_not_called_failed() {
    const REFUSED: Fault = Fault::Refuse(StoreErrorKind::Unavailable);
    for loses_mark in [true, false] {
        let storage = logged();
        let faulty = Faulty::new(&storage);
        let queue = steps(&faulty.storage()).await;
        let first = step("a", 0);
        let sent = queue.send(&first).with(id("first").delay(MINUTE * 5)).await.unwrap();
        send(&queue, &step("a", 1)).await;
        let written = faulty.calls_of(Operation::PutBlob);
        let puts = faulty.clone();
        faulty.on(Operation::PutBlob, move |_| match puts.calls_of(Operation::PutBlob) - written {
            0 | 1 => loses_mark.then_some(LOST),
            _ => Some(REFUSED),
        });
        let puts = faulty.clone();
        faulty.on(Operation::GetBlob, move |_| {
            (puts.calls_of(Operation::PutBlob) > written).then_some(REFUSED)
        });
        faulty.plan_always(Operation::Delete, REFUSED);
        let error = queue.cancel(&sent).await.unwrap_err();
        let watch = Watch::default();
        run_for(&storage, &watch, MINUTE * 10).await;
        assert_eq!(watch.begun("a"), [1], "the next of the key has completed the cancellation");
        assert!(error.is_outcome_unknown(), "{error:?}");
    }
}

/// A worker remembers a job of which a message may be left, the log has forgotten it, and it is sent again.
#[tokio::test(start_paused = true)]
async fn a_job_that_is_discarded_as_done_holds_up_no_key() {
    // Quiet: the deletions succeed from the minute on, and the job is sent again at the next.
    let faulty = Faulty::quiet(&logged());
    let storage = faulty.storage();
    let queue = steps(&storage).await;
    let (watch, first) = (Watch::default(), step("a", 0));
    let built = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let running = tokio::spawn(built.run_until(sleep(MINUTE * 3)));
    for operation in [Operation::Delete, Operation::DeleteAll] {
        let begin = Instant::now();
        let lost =
            move |_: &Call| (begin.elapsed() < MINUTE).then_some(Fault::LoseRequest(StoreErrorKind::Timeout));
        faulty.on(operation, lost);
    }
    queue.send(&first).with(id("first")).await.unwrap();
    sleep(MINUTE * 2).await;
    assert!(queue.is_empty().await.unwrap());
    storage.blobs().delete_container(&"jobqueue-fifo".parse().unwrap()).await.unwrap();
    queue.send(&first).with(id("first")).await.unwrap();
    send(&queue, &step("a", 1)).await;
    let _ = running.await.unwrap().unwrap();
    assert_eq!(watch.begun("a"), [0, 1]);
}

// B25
#[tokio::test(start_paused = true)]
async fn a_send_whose_answers_were_lost_is_not_called_refused() {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    let queue = steps(&faulty.storage()).await;
    for nth in [1, 2] {
        faulty.plan(Operation::Put, nth, LOST);
    }
    let error = queue.send(&step("a", 0)).with(id("first")).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    // The last refusal does not settle the first doubt.
    faulty.plan(Operation::Put, 1, LOST);
    faulty.plan(Operation::Put, 2, Fault::Refuse(StoreErrorKind::Unauthorized));
    let error = queue.send(&step("a", 1)).with(id("second")).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    // Stored, and its position is not confirmed.
    faulty.plan(Operation::PutBlob, 2, Fault::Refuse(StoreErrorKind::Unauthorized));
    let error = queue.send(&step("a", 2)).with(id("unconfirmed")).await.unwrap_err();
    assert!(error.is_outcome_unknown(), "{error:?}");
    // Surely refused, it has no position.
    faulty.plan(Operation::Put, 1, Fault::Refuse(StoreErrorKind::Unauthorized));
    let error = queue.send(&step("a", 3)).with(id("third")).await.unwrap_err();
    assert!(error.is_rejected(), "{error:?}");
    send(&queue, &step("a", 4)).await;
    let watch = Watch::default();
    let took = run(&storage, &watch, 4).await;
    assert_eq!(watch.begun("a"), [0, 1, 2, 4]);
    assert!(took < MINUTE, "{took:?}");
}

// B1
#[tokio::test(start_paused = true)]
async fn a_copy_with_its_payload_in_a_blob_ends_without_harm_to_the_job() {
    let faulty = Faulty::new(&logged());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    faulty.plan(Operation::Put, 1, LOST);
    let large = Task { data: "x".repeat(200_000), ..task("a") };
    queue.send(&large).with(id("first")).await.unwrap();
    queue.send(&large).with(id("second")).await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap(), 3, "two copies, and the next of the key");
    // Fails once, while its copy comes and goes.
    let ran: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&ran);
    let handler = move |_: Task, info: JobInfo| {
        let attempt = info.attempt;
        log.lock().unwrap().push(format!("{} {attempt}", info.id));
        async move { if attempt == 1 { Err(JobError::retry("not yet")) } else { Ok(()) } }
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let report = worker.run_until(sleep(MINUTE * 10)).await.unwrap();
    assert_eq!(*ran.lock().unwrap(), ["first 1", "first 2", "second 1", "second 2"]);
    assert_eq!(report.completed, 2);
    assert_eq!(report.dead_lettered, 0);
    assert!(queue.is_empty().await.unwrap());
}

// C11
#[tokio::test(start_paused = true)]
async fn payload_is_fetched_once_when_the_turn_has_come() {
    let faulty = Faulty::new(&logged());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let fetched = || {
        let calls = faulty.calls();
        let is_fetch =
            |call: &&Call| call.operation == Operation::GetBlob && call.subject.contains("payloads");
        calls.iter().filter(is_fetch).count()
    };
    queue.send(&task("a")).in_order().key("a").await.unwrap();
    for _ in 0..5 {
        let large = Task { data: "x".repeat(200_000), ..task("a") };
        queue.send(&large).in_order().key("a").await.unwrap();
    }
    let handler = |task: Task| async move {
        sleep(if task.data.is_empty() { MINUTE * 30 } else { Duration::ZERO }).await;
        Ok::<_, JobError>(())
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let running = tokio::spawn(worker.run_until(sleep(MINUTE * 60)));
    sleep(MINUTE * 25).await;
    assert_eq!(fetched(), 0, "nobody reads a payload before its turn");
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.completed, fetched()), (6, 5));
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_sent_again_when_it_is_done_is_told_as_done() {
    let storage = logged();
    let queue = steps(&storage).await;
    let first = step("a", 0);
    assert!(!queue.send(&first).with(id("first")).await.unwrap().was_done());
    let watch = Watch::default();
    run(&storage, &watch, 1).await;
    let again = queue.send(&first).with(id("first")).await.unwrap();
    assert!(again.was_done() && again.id() == "first");
    assert!(queue.is_empty().await.unwrap() && !queue.cancel(&again).await.unwrap());
    let list = [(&first, id("first")), (&step("a", 7), id("first")), (&step("a", 1), id("second"))];
    let sent = queue.send_all(list).await.unwrap();
    let done: Vec<bool> = sent.into_iter().map(|sent| sent.unwrap().was_done()).collect();
    assert_eq!(done, [true, true, false], "the id and the key are the job");
    run(&storage, &watch, 2).await;
    assert_eq!(watch.begun("a"), [0, 1]);
}

// W2
#[tokio::test(start_paused = true)]
async fn the_ids_of_jobs_are_bounded() {
    let storage = logged();
    let queue = steps(&storage).await;
    queue.send(&step("a", 0)).with(id(&"x".repeat(1_024))).await.unwrap();
    let error = queue.send(&step("a", 0)).with(id(&"x".repeat(1_025))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("1024") && !error.to_string().contains("xx"), "{error}");
    // What others put, with ids of any length.
    for number in 1..=300 {
        let data = serde_json::to_value(step("a", number)).unwrap();
        let event = serde_json::json!({
            "specversion": "1.0", "id": format!("{number}{}", "x".repeat(60_000)), "source": "/other",
            "type": "step", "key": "a", "inorder": "true", "data": data,
        });
        let message = jobqueue::storage::PutMessage::new(event.to_string());
        storage.queues().put(queue.name(), message).await.unwrap();
    }
    send(&queue, &step("a", 301)).await;
    let watch = Watch::default();
    let took = run(&storage, &watch, 2).await;
    assert!(took < MINUTE, "{took:?}");
    assert_eq!(watch.begun("a"), [0, 301]);
    run_for(&storage, &watch, MINUTE).await;
    assert_eq!(queue.dead_letters().unwrap().approximate_len().await.unwrap(), 300);
}
