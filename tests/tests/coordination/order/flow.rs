//! The flow of the jobs of a key: lists, long jobs, lost messages, shards, several workers. On memory, in
//! paused time.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::sharded::Sharded;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{JobError, JobInfo, QueueMessage, QueueName, SendOptions, State, Storage};
use jobqueue_admin::{AccessLevel, Admin};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::worker;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

use crate::order::records::{MINUTE, run, steps};
use crate::order::{Step, Watch, handle, logged, send, step, with_clock_ahead};

// B3
#[tokio::test(start_paused = true)]
async fn a_list_is_run_in_its_order_while_a_worker_runs() {
    run_list_while_sending(Duration::ZERO).await;
}

// round 29, coordination 1: the worker took each announced job for that of a dead sender.
#[tokio::test(start_paused = true)]
async fn list_is_run_in_its_order_by_a_worker_whose_clock_is_ahead() {
    run_list_while_sending(MINUTE * 3).await;
}

/// Runs a list while it is sent, on a worker whose clock is `ahead` of the sender's.
async fn run_list_while_sending(ahead: Duration) {
    let storage = logged();
    let faulty = Faulty::new(&storage);
    faulty.plan_always(Operation::PutBlob, Fault::DelayBefore(Duration::from_millis(20)));
    let queue = steps(&faulty.storage()).await;
    let watch = Watch::default();
    let worker =
        worker(&with_clock_ahead(&storage, ahead)).state(watch.clone()).handle(handle).build().unwrap();
    let running = tokio::spawn(worker.run_until({
        let watch = watch.clone();
        async move { watch.ends(600).await }
    }));
    let list: Vec<Step> = (0..300).flat_map(|number| ["0", "1"].map(|key| step(key, number))).collect();
    let sent = queue.send_all(list.iter().map(|step| (step, arriving_late(step)))).await.unwrap();
    assert!(sent.iter().all(Result::is_ok));
    let _ = running.await.unwrap().unwrap();
    watch.assert_in_order(2, 300);
}

/// Returns options with which every tenth job arrives after those behind it.
pub(super) fn arriving_late(step: &Step) -> SendOptions {
    let delay = Duration::from_millis(if step.number.is_multiple_of(10) { 500 } else { 0 });
    SendOptions::new().in_order().delay(delay)
}

// round 30, storages 1: the end of the list was put when its positions were no longer kept.
#[tokio::test(start_paused = true)]
async fn jobs_of_a_list_that_a_slow_queue_accepts_run_in_their_order() {
    let account = logged();
    let faulty = Faulty::new(&account);
    faulty.plan_always(Operation::Put, Fault::DelayBefore(Duration::from_secs(40)));
    let sharded = |account: Storage| {
        let sharded = Sharded::builder().shards("steps", 4).account("one", account).build().unwrap();
        Storage::from(sharded.stores())
    };
    let queue = steps(&sharded(faulty.storage())).await;
    let watch = Watch::default();
    let worker = worker(&sharded(account)).state(watch.clone()).handle(handle).build().unwrap();
    let running = tokio::spawn(worker.run_until(sleep(MINUTE * 10)));
    let list: Vec<Step> = (0..128).map(|number| step("0", number)).collect();
    let sent = queue.send_all(list.iter().map(|step| (step, arriving_late(step)))).await.unwrap();
    let _ = running.await.unwrap().unwrap();
    let accepted = list.iter().zip(&sent).filter(|(_, sent)| sent.is_ok());
    let accepted: Vec<_> = accepted.map(|(step, _)| step.number).collect();
    assert!(accepted.len() >= 32, "{accepted:?}");
    assert_eq!(watch.begun("0"), accepted);
}

// B4
#[tokio::test(start_paused = true)]
async fn a_queue_that_was_deleted_and_created_again_waits_for_nothing() {
    // round 34, A2: an operator created it with the logs of the deleted queue.
    for by_operator in [false, true] {
        let storage = logged();
        let queue = steps(&storage).await;
        for number in 0..3 {
            send(&queue, &step("a", number)).await;
        }
        storage.queues().delete_queue(queue.name()).await.unwrap();
        if by_operator {
            let operator = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
            assert!(operator.create_queue(queue.name().as_str()).await.unwrap());
        }
        let queue = steps(&storage).await;
        send(&queue, &step("a", 3)).await;
        let watch = Watch::default();
        assert!(run(&storage, &watch, 1).await < Duration::from_secs(1));
        assert_eq!(watch.begun("a"), [3]);
    }
}

/// A hundred jobs of the key are in pages of its log. Two are sent while the messages are deleted.
// audit 23, coordination B2
#[tokio::test(start_paused = true)]
async fn jobs_that_are_sent_while_their_queue_is_cleared_keep_their_order() {
    let storage = logged();
    let queue = steps(&storage).await;
    let later = SendOptions::new().in_order().delay(MINUTE);
    let former: Vec<Step> = (0..100).map(|number| step("a", number)).collect();
    let sent = queue.send_all(former.iter().map(|step| (step, later.clone()))).await.unwrap();
    assert!(sent.iter().all(Result::is_ok));
    let slow = Faulty::new(&storage);
    slow.plan(Operation::Clear, 1, Fault::DelayAfter(Duration::from_secs(20)));
    let cleared = steps(&slow.storage()).await;
    let sending = async {
        sleep(Duration::from_secs(10)).await;
        queue.send(&step("a", 100)).with(later).await.unwrap();
        send(&queue, &step("a", 101)).await;
    };
    let (cleared, ()) = tokio::join!(cleared.clear(), sending);
    cleared.unwrap();
    let watch = Watch::default();
    assert!(run(&storage, &watch, 2).await < 2 * MINUTE, "positions of deleted messages are left");
    assert_eq!(watch.begun("a"), [100, 101]);
}

// B4
#[tokio::test(start_paused = true)]
async fn messages_that_were_deleted_by_others_are_waited_for_some_minutes_only() {
    let storage = logged();
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

/// The message of the first has vanished, and those of all others wait on one worker.
#[tokio::test(start_paused = true)]
async fn messages_that_wait_are_not_passed_by_with_one_that_has_vanished() {
    let storage = logged();
    let queue = steps(&storage).await;
    send(&queue, &step("a", 0)).await;
    storage.queues().clear(queue.name()).await.unwrap();
    for number in 1..=150 {
        send(&queue, &step("a", number)).await;
    }
    sleep(MINUTE * 6).await;
    let watch = Watch::default();
    run(&storage, &watch, 150).await;
    assert_eq!(watch.begun("a"), (1..=150).collect::<Vec<_>>());
}

/// Far more of them than can wait in a worker, in pages of the log.
#[tokio::test(start_paused = true)]
async fn thousands_of_messages_that_vanished_are_waited_for_once() {
    let storage = logged();
    let queue = steps(&storage).await;
    let list: Vec<_> = (0..1_000).map(|number| (step("a", number), SendOptions::new().in_order())).collect();
    assert!(queue.send_all(list).await.unwrap().iter().all(Result::is_ok));
    storage.queues().clear(queue.name()).await.unwrap();
    send(&queue, &step("a", 1_000)).await;
    let watch = Watch::default();
    let took = run(&storage, &watch, 1).await;
    assert_eq!(watch.begun("a"), [1_000]);
    assert!(took < MINUTE * 12, "{took:?}");
}

/// So many are before it that it finds no room in memory. While it reads the log, that is removed, and
/// another job gets the only slot.
#[tokio::test(start_paused = true)]
async fn job_that_found_no_room_to_wait_runs_in_a_slot() {
    let storage = logged();
    let queue = steps(&storage).await;
    let later = SendOptions::new().in_order().delay(MINUTE * 60);
    let list: Vec<_> = (0..300).map(|number| (step("a", number), later.clone())).collect();
    assert!(queue.send_all(list).await.unwrap().iter().all(Result::is_ok));
    send(&queue, &step("a", 300)).await;
    // It comes at the second look, when the one without room has left the slot.
    let _ = queue.send(&step("free", 0)).delay(Duration::from_secs(10)).await.unwrap();

    let (faulty, reading) = (Faulty::new(&storage), Arc::new(Notify::new()));
    let reads = Arc::clone(&reading);
    // The first read shows those before it.
    faulty.on(Operation::GetBlob, move |call| {
        (call.nth == 2).then(|| {
            reads.notify_one();
            Fault::DelayBefore(Duration::from_secs(20))
        })
    });
    let (watch, counts) = (Watch::default(), Arc::new(Mutex::new((0, 0))));
    let (log, counted) = (watch.clone(), Arc::clone(&counts));
    let handler = move |step: Step| {
        let (log, counted) = (log.clone(), Arc::clone(&counted));
        async move {
            let _running = log.begin(&step);
            let count = |more: i32| {
                let mut counted = counted.lock().unwrap();
                counted.0 += more;
                counted.1 = counted.0.max(counted.1);
            };
            count(1);
            sleep(MINUTE).await;
            count(-1);
            Ok::<_, JobError>(())
        }
    };
    let worker = worker(&faulty.storage()).concurrency(1).handle(handler).build().unwrap();
    let running = tokio::spawn(worker.run_until(sleep(MINUTE * 10)));
    reading.notified().await;
    storage.blobs().delete_container(&"jobqueue-fifo".parse().unwrap()).await.unwrap();
    let _ = running.await.unwrap().unwrap();
    assert_eq!((watch.begun("a"), watch.begun("free")), (vec![300], vec![0]));
    assert_eq!(counts.lock().unwrap().1, 1, "a job ran without a slot");
}

/// A message of the queue and the keys of [`Step`] that only a later release reads.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "steps", kind = "step.later")]
struct Later {
    #[message(key)]
    of: String,
}

/// In a rolling deploy the head is put back again and again, and each time is alive.
#[tokio::test(start_paused = true)]
async fn a_head_that_no_worker_knows_yet_holds_its_key() {
    let storage = logged();
    let later = storage.queue::<Later>().await.unwrap();
    later.send(&Later { of: "a".into() }).in_order().await.unwrap();
    send(&steps(&storage).await, &step("a", 1)).await;
    let watch = Watch::default();
    let old = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let _ = old.run_until(sleep(MINUTE * 20)).await.unwrap();
    assert!(watch.begun("a").is_empty(), "it passed its head");

    let seen = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&seen);
    let new = worker(&storage).state(watch.clone()).handle(handle).handle(move |_: Later| {
        *counted.lock().unwrap() += 1;
        async { Ok::<(), JobError>(()) }
    });
    let _ = new.build().unwrap().run_until(sleep(MINUTE * 2)).await.unwrap();
    assert_eq!((*seen.lock().unwrap(), watch.begun("a")), (1, vec![1]));
}

/// Those behind a head that runs for long, or is put back for long, wait for it.
#[tokio::test(start_paused = true)]
async fn a_job_that_takes_an_hour_or_comes_back_in_an_hour_keeps_its_position() {
    let storage = logged();
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

// I21; D1
#[tokio::test(start_paused = true)]
async fn a_queue_is_sharded_while_jobs_in_order_wait_in_it() {
    let accounts = [logged(), logged()];
    let plain = steps(&accounts[0]).await;
    for number in 0..5 {
        send(&plain, &Step { fails: 2 * u32::from(number == 1), ..step("a", number) }).await;
    }
    let sharded = Sharded::builder().shards("steps", 4);
    let sharded = sharded.account("one", accounts[0].clone()).account("two", accounts[1].clone());
    let sharded = Storage::from(sharded.build().unwrap().stores());
    let queue = steps(&sharded).await;
    for number in 5..8 {
        send(&queue, &step("a", number)).await;
    }
    let watch = Watch::default();
    // The plain worker begins a job that the other one ends: its turn is recorded by then.
    let twice = async {
        while watch.begun("a").len() < 3 {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let first = worker(&accounts[0]).state(watch.clone()).handle(handle).build().unwrap();
    let _ = timeout(MINUTE, first.run_until(twice)).await.expect("two attempts").unwrap();
    assert_eq!(watch.begun("a"), [0, 1, 1]);
    // Then workers of both kinds, as while a fleet is changed over.
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
    let storage = logged();
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
    let storage = logged();
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
    let storage = logged();
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
    let dead = queue.dead_letters().unwrap().list().await.unwrap().letters;
    assert_eq!(dead.len(), 1);
}
