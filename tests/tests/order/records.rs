//! The group logs when senders, cancellers and storages fail half-way: no key is blocked for good, and no job is
//! swallowed. On memory, in paused time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::RedriveOptions;
use jobqueue::sharded::Sharded;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::testing::faults::{Fault, Faulty};
use jobqueue::{ErrorKind, JobError, JobInfo, Queue, QueueName, SendOptions, State, Storage};
use jobqueue_tests::jobs::{Task, clock, in_memory, task, worker};
use tokio::time::{Instant, sleep, timeout};

use crate::{Step, Watch, handle, send, step};

const MINUTE: Duration = Duration::from_secs(60);
const LOST: Fault = Fault::DropAnswer(StoreErrorKind::Timeout);

async fn steps(storage: &Storage) -> Queue<Step> {
    storage.queue_on_virtual_time::<Step>(clock()).await.unwrap()
}

/// Runs a worker until this number of steps has ended. Returns the time it took.
async fn run(storage: &Storage, watch: &Watch, ends: usize) -> Duration {
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

// B3
#[tokio::test(start_paused = true)]
async fn a_list_is_run_in_its_order_while_a_worker_runs() {
    let storage = in_memory();
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::PutBlob, Fault::DelayBefore(Duration::from_millis(20)));
    let queue = steps(&faulty.storage()).await;
    let watch = Watch::default();
    let worker = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let running = tokio::spawn(worker.run_until({
        let watch = watch.clone();
        async move { watch.ends(600).await }
    }));
    let list: Vec<Step> = (0..300).flat_map(|number| ["0", "1"].map(|key| step(key, number))).collect();
    let options = |step: &Step| {
        // The later ones are delivered first.
        let delay = Duration::from_millis(if step.number.is_multiple_of(10) { 500 } else { 0 });
        SendOptions::new().in_order().delay(delay)
    };
    let sent = queue.send_all(list.iter().map(|step| (step, options(step)))).await.unwrap();
    assert!(sent.iter().all(Result::is_ok));
    let _ = running.await.unwrap().unwrap();
    watch.assert_in_order(2, 300);
}

// B4: the sender heard of its message only when that had come to its end.
#[tokio::test(start_paused = true)]
async fn a_job_that_died_before_its_send_returned_blocks_no_key() {
    let storage = in_memory();
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
    let redriven = queue.dead_letters().unwrap().redrive(RedriveOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 2);
    assert!(run(&storage, &watch, 3).await < Duration::from_secs(10));
    assert_eq!(watch.begun("a"), [1, 0]);
    assert!(queue.is_empty().await.unwrap());
}

// B4
#[tokio::test(start_paused = true)]
async fn a_queue_that_was_deleted_and_created_again_waits_for_nothing() {
    let storage = in_memory();
    let queue = steps(&storage).await;
    for number in 0..3 {
        send(&queue, &step("a", number)).await;
    }
    storage.queues().delete_queue(queue.name()).await.unwrap();
    let queue = steps(&storage).await;
    send(&queue, &step("a", 3)).await;
    let watch = Watch::default();
    assert!(run(&storage, &watch, 1).await < Duration::from_secs(1));
    assert_eq!(watch.begun("a"), [3]);
}

// B4
#[tokio::test(start_paused = true)]
async fn messages_that_were_deleted_by_others_are_waited_for_some_minutes_only() {
    let storage = in_memory();
    let queue = steps(&storage).await;
    for number in 0..3 {
        send(&queue, &step("a", number)).await;
    }
    storage.queues().clear(queue.name()).await.unwrap();
    send(&queue, &step("a", 3)).await;
    let watch = Watch::default();
    let took = run(&storage, &watch, 1).await;
    assert!(took < MINUTE * 40, "three of them, each for {took:?} together");
    assert_eq!(watch.begun("a"), [3]);
}

/// Those behind a head that runs for long, or is put back for long, wait for it.
#[tokio::test(start_paused = true)]
async fn a_job_that_takes_an_hour_or_comes_back_in_an_hour_keeps_its_position() {
    let storage = in_memory();
    let queue = steps(&storage).await;
    let watch = Watch::default();
    send(&queue, &Step { millis: 3_600_000, ..step("a", 0) }).await;
    send(&queue, &step("a", 1)).await;
    assert!(run(&storage, &watch, 2).await > MINUTE * 59);
    watch.assert_in_order_of("a", 2);

    async fn snooze_once(step: Step, info: JobInfo, State(watch): State<Watch>) -> Result<(), JobError> {
        let _running = watch.begin(&step);
        if step.number == 0 && info.dequeue_count == 1 {
            return Err(JobError::snooze(MINUTE * 60));
        }
        watch.end(&step);
        Ok(())
    }
    let watch = Watch::default();
    for number in 0..3 {
        send(&queue, &step("a", number)).await;
    }
    let worker = worker(&storage).state(watch.clone()).handle(snooze_once).build().unwrap();
    let _ = timeout(MINUTE * 120, worker.run_until(watch.ends(3))).await.unwrap().unwrap();
    assert_eq!(watch.begun("a"), [0, 0, 1, 2]);
}

// B23
#[tokio::test(start_paused = true)]
async fn what_is_sent_again_after_an_error_runs_whatever_write_was_lost() {
    for (nth, fault) in [1, 2].into_iter().flat_map(|nth| {
        [LOST, Fault::LoseRequest(StoreErrorKind::Timeout), Fault::Refuse(StoreErrorKind::Unauthorized)]
            .map(|fault| (nth, fault))
    }) {
        let at = format!("write {nth}: {fault:?}");
        let storage = in_memory();
        let faulty = Faulty::new(&storage);
        let queue = steps(&faulty.storage()).await;
        send(&queue, &step("other", 0)).await;
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
                if call.nth == 2 + nth {
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
    let storage = in_memory();
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

// B25
#[tokio::test(start_paused = true)]
async fn a_send_whose_answers_were_lost_is_not_called_refused() {
    let storage = in_memory();
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
    // Surely refused, it has no position.
    faulty.plan(Operation::Put, 1, Fault::Refuse(StoreErrorKind::Unauthorized));
    let error = queue.send(&step("a", 2)).with(id("third")).await.unwrap_err();
    assert!(error.is_rejected(), "{error:?}");
    send(&queue, &step("a", 3)).await;
    let watch = Watch::default();
    let took = run(&storage, &watch, 3).await;
    assert_eq!(watch.begun("a"), [0, 1, 3]);
    assert!(took < MINUTE, "{took:?}");
}

// B1
#[tokio::test(start_paused = true)]
async fn a_copy_with_its_payload_in_a_blob_ends_without_harm_to_the_job() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue_on_virtual_time::<Task>(clock()).await.unwrap();
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
    assert_eq!((report.completed, report.dead_lettered), (2, 0));
    assert!(queue.is_empty().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_job_that_is_sent_again_when_it_is_done_is_told_as_done() {
    let storage = in_memory();
    let queue = steps(&storage).await;
    let first = step("a", 0);
    assert!(!queue.send(&first).with(id("first")).await.unwrap().was_done());
    let watch = Watch::default();
    run(&storage, &watch, 1).await;
    let again = queue.send(&first).with(id("first")).await.unwrap();
    assert!(again.was_done() && again.id() == "first");
    assert!(queue.is_empty().await.unwrap() && !queue.cancel(&again).await.unwrap());
    let list = [first, step("a", 1)];
    let list = list.iter().map(|step| (step, id("first")));
    let sent = queue.send_all(list).await.unwrap();
    let done: Vec<bool> = sent.into_iter().map(|sent| sent.unwrap().was_done()).collect();
    assert_eq!(done, [true, false], "another payload under the same id is another job");
    run(&storage, &watch, 2).await;
    assert_eq!(watch.begun("a"), [0, 1]);
}

// W2
#[tokio::test(start_paused = true)]
async fn the_ids_of_jobs_are_bounded() {
    let storage = in_memory();
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

// D1
#[tokio::test(start_paused = true)]
async fn a_queue_is_sharded_while_jobs_in_order_wait_in_it() {
    let accounts = [in_memory(), in_memory()];
    let plain = steps(&accounts[0]).await;
    for number in 0..5 {
        send(&plain, &Step { fails: u32::from(number == 1), ..step("a", number) }).await;
    }
    let sharded = Sharded::builder().shards("steps", 4).clock(clock());
    let sharded = sharded.account("one", accounts[0].clone()).account("two", accounts[1].clone());
    let sharded = sharded.build().unwrap().storage();
    let queue = steps(&sharded).await;
    for number in 5..8 {
        send(&queue, &step("a", number)).await;
    }
    // Workers of both kinds, as while a fleet is changed over.
    let watch = Watch::default();
    let plain = worker(&accounts[0]).state(watch.clone()).handle(handle).build().unwrap();
    let plain = tokio::spawn(plain.run_until(sleep(MINUTE)));
    run(&sharded, &watch, 8).await;
    let _ = plain.await.unwrap().unwrap();
    watch.assert_in_order_of("a", 8);
    assert!(queue.is_empty().await.unwrap());
    let name = QueueName::new("steps").unwrap();
    assert_eq!(sharded.queues().queue_properties(&name).await.unwrap().approximate_count, 0);
}

// W-flow
#[tokio::test(start_paused = true)]
async fn a_group_goes_on_at_full_rate_when_its_head_is_done() {
    let storage = in_memory();
    let queue = steps(&storage).await;
    let later = SendOptions::new().in_order().delay(MINUTE * 3);
    queue.send(&step("a", 0)).with(later).await.unwrap();
    for number in 1..=200 {
        send(&queue, &step("a", number)).await;
    }
    let watch = Watch::default();
    let took = run(&storage, &watch, 201).await;
    // 2 s for the handlers, one after the other.
    assert!(took < MINUTE * 3 + Duration::from_secs(4), "{took:?}");
    watch.assert_in_order_of("a", 201);
}

// W-flow: many workers, each of which has some of the messages.
#[tokio::test(start_paused = true)]
async fn a_group_flows_through_several_workers() {
    let storage = in_memory();
    let queue = steps(&storage).await;
    for number in 0..400 {
        send(&queue, &step("0", number)).await;
    }
    let watch = Watch::default();
    let began = Instant::now();
    let workers = (0..4).map(|_| {
        let worker = worker(&storage).concurrency(4).state(watch.clone()).handle(handle).build().unwrap();
        let watch = watch.clone();
        worker.run_until(async move {
            watch.ends(400).await;
            watch.end.notify_one();
        })
    });
    for report in futures_util::future::join_all(workers).await {
        let _ = report.unwrap();
    }
    watch.assert_in_order(1, 400);
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
}

/// The queues cannot be written, the blobs can: nothing records the dead job.
#[tokio::test(start_paused = true)]
async fn a_job_whose_last_failure_is_not_recorded_holds_back_its_key() {
    let storage = in_memory();
    let queue = steps(&storage).await;
    send(&queue, &Step { fails: 3, ..step("a", 0) }).await;
    send(&queue, &step("a", 1)).await;
    let faulty = Faulty::new(&storage);
    let outage = Arc::new(Mutex::new(None::<Instant>));
    for operation in [Operation::Update, Operation::Delete, Operation::Put] {
        let outage = Arc::clone(&outage);
        faulty.on(operation, move |_| {
            let since = *outage.lock().unwrap();
            let is_out = since.is_some_and(|since| since.elapsed() < MINUTE * 5);
            is_out.then_some(Fault::Refuse(StoreErrorKind::Unavailable))
        });
    }
    let watch = Watch::default();
    let handler = move |step: Step, info: JobInfo, watch: State<Watch>| {
        if info.attempt == 3 {
            outage.lock().unwrap().get_or_insert_with(Instant::now);
        }
        handle(step, info, watch)
    };
    let built = worker(&faulty.storage()).state(watch.clone()).handle(handler).build().unwrap();
    let seen = watch.clone();
    let ended = timeout(MINUTE * 60, built.run_until(async move { seen.ends(2).await })).await;
    let _ = ended.expect("the key goes on").unwrap();
    let begun = watch.begun("a");
    assert!(begun.is_sorted() && begun.last() == Some(&1), "{begun:?}");
    let dead = queue.dead_letters().unwrap().list().await.unwrap();
    assert_eq!(dead.len(), 1);
}
