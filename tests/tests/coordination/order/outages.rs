//! Outages of the blobs that hold the order, while the queue works, and of what handlers need.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::CircuitBreaker;
use jobqueue::{Event, JobError, QueueMessage, QueueName, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, in_memory, worker};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use crate::order::records::{MINUTE, run, steps};
use crate::order::{Step, Watch, handle, logged, send, step};

fn refuse_blobs(faulty: &Faulty) {
    for operation in [Operation::GetBlob, Operation::PutBlob] {
        faulty.plan_always(operation, Fault::Refuse(StoreErrorKind::Unavailable));
    }
}

#[tokio::test(start_paused = true)]
async fn outage_of_blobs_holds_up_no_job_without_order() {
    let faulty = Faulty::new(&logged());
    let queue = steps(&faulty.storage()).await;
    for key in 0..40 {
        send(&queue, &step(key.to_string(), 0)).await;
    }
    refuse_blobs(&faulty);
    let watch = Watch::default();
    let built = worker(&faulty.storage()).state(watch.clone()).concurrency(4).handle(handle).build().unwrap();
    let running = tokio::spawn(built.run_until(sleep(MINUTE * 60)));
    sleep(MINUTE * 20).await;
    queue.send(&step("free", 1)).await.unwrap();
    sleep(MINUTE * 2).await;
    assert_eq!(watch.begun("free"), [1]);
    faulty.heal();
    let report = running.await.unwrap().unwrap();
    assert_eq!((report.completed, report.dead_lettered), (41, 0), "{report:?}");
}

/// Runs a worker with four slots during an outage of the blobs. Returns the number of messages of `queue`
/// that it has leased after three minutes.
async fn leased_without_blobs(faulty: &Faulty, inner: &Storage, queue: &QueueName) -> u64 {
    refuse_blobs(faulty);
    let builder = worker(&faulty.storage()).concurrency(4).rejections_per_second(1);
    let built = builder.handle(async |_: Step| Ok::<_, JobError>(())).build().unwrap();
    let running = tokio::spawn(built.run_until(sleep(MINUTE * 4)));
    sleep(MINUTE * 3).await;
    let counts = inner.queues().counts_by_state(queue).await.unwrap().expect("counted");
    let _ = running.await.unwrap().unwrap();
    faulty.heal();
    counts.running
}

/// A message of the queue and the kind of [`Step`] that cannot be read as one.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "steps", kind = "step")]
struct Mistaken {
    #[message(key)]
    of: String,
}

// round 30, core 1: each put-back of a minute and more left its slot, and waited for its log.
#[tokio::test(start_paused = true)]
async fn flood_of_unreadable_jobs_in_order_is_not_leased_as_a_whole_without_blobs() {
    let inner = in_memory();
    let faulty = Faulty::new(&inner);
    let queue = faulty.storage().queue::<Mistaken>().await.unwrap();
    for key in 0..400 {
        queue.send(&Mistaken { of: key.to_string() }).in_order().await.unwrap();
    }
    let leased = leased_without_blobs(&faulty, &inner, queue.name()).await;
    assert!(leased < 20, "{leased}");
}

/// They come after seven days, the longest time for which a storage hides a message.
// round 30, core 1
#[tokio::test(start_paused = true)]
async fn jobs_in_order_that_come_before_their_time_are_not_leased_as_a_whole_without_blobs() {
    const DAY: Duration = Duration::from_secs(86_400);
    let inner = in_memory();
    let faulty = Faulty::new(&inner);
    let queue = steps(&faulty.storage()).await;
    for key in 0..200 {
        let later = SendOptions::new().in_order().delay(DAY * 8);
        queue.send(&step(key.to_string(), 0)).with(later).await.unwrap();
    }
    sleep(DAY * 7).await;
    let leased = leased_without_blobs(&faulty, &inner, queue.name()).await;
    assert!(leased < 20, "{leased}");
    sleep(DAY * 2).await;
    let built = worker(&faulty.storage()).handle(async |_: Step| Ok::<_, JobError>(())).build().unwrap();
    let report = built.run_until(sleep(MINUTE * 5)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (200, 0), "{report:?}");
}

// review of round 30, B4: each of them kept a slot until the requests to its log were given up.
#[tokio::test(start_paused = true)]
async fn jobs_without_order_run_while_those_before_their_time_wait_for_their_logs() {
    const DAY: Duration = Duration::from_secs(86_400);
    let faulty = Faulty::new(&in_memory());
    let queue = steps(&faulty.storage()).await;
    for key in 0..200 {
        let later = SendOptions::new().in_order().delay(DAY * 8);
        queue.send(&step(key.to_string(), 0)).with(later).await.unwrap();
    }
    sleep(DAY * 7).await;
    for operation in [Operation::GetBlob, Operation::PutBlob] {
        faulty.plan_always(operation, Fault::Hang);
    }
    for number in 0..20 {
        queue.send(&step("free", number)).await.unwrap();
    }
    let builder = worker(&faulty.storage()).concurrency(4).circuit_breaker(None);
    let built = builder.handle(async |_: Step| Ok::<_, JobError>(())).build().unwrap();
    let report = built.run_until(sleep(MINUTE)).await.unwrap();
    assert_eq!(report.completed, 20, "{report:?}");
}

/// Heartbeats of jobs in order sleep for up to 100 seconds.
#[tokio::test(start_paused = true)]
async fn jobs_that_have_ended_leave_no_heartbeats() {
    const JOBS: usize = 300;
    let storage = logged();
    let queue = steps(&storage).await;
    for number in 0..JOBS {
        send(&queue, &step("a", number as u32)).await;
    }
    let watch = Watch::default();
    let built = worker(&storage).state(watch.clone()).handle(handle).build().unwrap();
    let running = tokio::spawn(built.run_until(sleep(MINUTE)));
    watch.ends(JOBS).await;
    sleep(Duration::from_secs(1)).await;
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    assert!(tasks < 50, "{tasks} tasks after the end of all jobs");
    let _ = running.await.unwrap().unwrap();
}

// A retry this late is noted in the log, without the slot.
#[tokio::test(start_paused = true)]
async fn pause_of_a_circuit_doubles_with_each_probe_that_fails_in_order() {
    let storage = logged();
    let queue = steps(&storage).await;
    for number in 0..200 {
        send(&queue, &step(number.to_string(), 0)).await;
    }
    let handler = async |_: Step| Err::<(), _>(JobError::retry_after(MINUTE * 50, "the database is down"));
    let pauses = Arc::<Mutex<Vec<Duration>>>::default();
    let opened = Arc::clone(&pauses);
    let listen = move |event: &Event| {
        if let Event::CircuitOpened { retry_in, .. } = event {
            opened.lock().unwrap().push(*retry_in);
        }
    };
    let breaker =
        CircuitBreaker::new().failures(2).jobs(1).pause(Duration::from_secs(1), Duration::from_secs(64));
    let worker =
        worker(&storage).concurrency(1).circuit_breaker(breaker).handle(handler).on_event(listen).build();
    let report = worker.unwrap().run_until(sleep(Duration::from_secs(110))).await.unwrap();
    assert_eq!(*pauses.lock().unwrap(), [1, 2, 4, 8, 16, 32, 64].map(Duration::from_secs));
    assert!(report.retried <= 10, "{report:?}");
}

// The one behind a job that fails begins before the failure is counted.
#[tokio::test(start_paused = true)]
async fn jobs_that_wait_in_memory_do_not_begin_while_the_circuit_is_open() {
    let storage = logged();
    let queue = steps(&storage).await;
    let once = Metadata::new().with("poisonthreshold", "1");
    storage.queues().set_queue_metadata(queue.name(), &once).await.unwrap();
    for number in 0..20 {
        send(&queue, &step("a", number)).await;
    }
    let breaker = CircuitBreaker::new().failures(1).jobs(1).pause(MINUTE * 10, MINUTE * 10);
    let handler = async |_: Step| {
        sleep(Duration::from_secs(1)).await;
        Err::<(), _>(JobError::retry("the database is down"))
    };
    let built = worker(&storage).circuit_breaker(breaker).handle(handler).build().unwrap();
    let report = built.run_until(sleep(MINUTE * 5)).await.unwrap();
    assert!(report.dead_lettered <= 2, "{report:?}");
}

// audit 26, core B1
#[tokio::test(start_paused = true)]
async fn list_without_positions_ends_although_its_payloads_cannot_be_deleted() {
    let faulty = Faulty::new(&logged());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let refused = Fault::Refuse(StoreErrorKind::Unauthorized);
    faulty.on(Operation::PutBlob, move |call| call.subject.contains("jobqueue-fifo").then_some(refused));
    faulty.plan_always(Operation::DeleteBlob, Fault::Hang);
    let tasks: Vec<_> = (0..8).map(|_| Task { name: "a".into(), data: "x".repeat(100_000) }).collect();
    let sending = timeout(Duration::from_secs(30), queue.send_all(&tasks).in_order().into_future());
    let sent = sending.await.expect("the answers are known").unwrap();
    assert!(sent.iter().all(|sent| sent.as_ref().is_err_and(jobqueue::Error::is_rejected)), "{sent:?}");
}

// review 34 c, C1
#[tokio::test(start_paused = true)]
async fn refused_send_does_not_wait_for_a_log_that_hangs() {
    let faulty = Faulty::new(&logged());
    let queue = steps(&faulty.storage()).await;
    let plan = faulty.clone();
    faulty.on(Operation::Put, move |_| {
        // The position is announced.
        for operation in [Operation::GetBlob, Operation::PutBlob] {
            plan.plan_always(operation, Fault::Hang);
        }
        Some(Fault::Refuse(StoreErrorKind::Unauthorized))
    });
    let sending = queue.send(&step("a", 0)).in_order().into_future();
    let sent = timeout(Duration::from_secs(25), sending).await.expect("the answer is known");
    assert!(sent.unwrap_err().is_rejected());
}

// round 31, deliveries 1: the claim of the ended delivery came after the dead letter, and the key stood still.
#[tokio::test(start_paused = true)]
async fn claim_of_a_delivery_that_a_stop_has_ended_is_not_made_later() {
    let storage = logged();
    send(&steps(&storage).await, &step("a", 0)).await;
    let slow = Faulty::new(&storage);
    slow.plan_always(Operation::GetBlob, Fault::DelayBefore(MINUTE));
    let run_for = async |storage: &Storage, seconds| {
        let reject = async |_: Step| Err::<(), _>(JobError::dead_letter("never"));
        let built = worker(storage).handle(reject).build().unwrap();
        built.run_until(sleep(Duration::from_secs(seconds))).await.unwrap()
    };
    let stopped = run_for(&slow.storage(), 5).await;
    assert_eq!((stopped.released, stopped.abandoned), (1, 0), "{stopped:?}");
    let next = run_for(&storage, 10).await;
    assert_eq!(next.dead_lettered, 1, "{next:?}");
    // The read of the first claim is answered meanwhile.
    sleep(MINUTE * 2).await;
    send(&steps(&storage).await, &step("a", 1)).await;
    let took = run(&storage, &Watch::default(), 1).await;
    assert!(took < MINUTE, "{took:?}");
}
