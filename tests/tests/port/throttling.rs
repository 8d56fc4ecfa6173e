//! Throttling (F20): a throttled storage receives no requests that can wait, but still those that cannot.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::sharded::Sharded;
use jobqueue::storage::{ExpiredReceipt, GetMessages, Operation, Storage, StoreErrorKind};
use jobqueue::{Context, JobError, QueueMessage, Runtime, Worker};
use jobqueue_testing::faults::{AzureLike, Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, outcomes, task, worker};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "busy", kind = "busy", lease = "30s")]
struct Busy {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "other", kind = "other", lease = "30s")]
struct Other {}

/// The pause that the storage asks for.
const PAUSE: Duration = Duration::from_secs(120);

/// Throttles the next get and waits for it. Returns its time.
async fn throttle(storage: &Faulty) -> Instant {
    let before = storage.calls_of(Operation::Get);
    storage.plan(Operation::Get, 1, Fault::Throttle(PAUSE));
    while storage.calls_of(Operation::Get) == before {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    tokio::time::sleep(AzureLike::SLOWEST).await;
    Instant::now()
}

/// While a storage throttles, none of its queues is polled and a send waits, but the lease of a running job
/// is renewed. Afterwards everything continues.
// F20
#[tokio::test(start_paused = true)]
async fn renewals_go_before_polling_and_sending() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    storage.queue::<Busy>().await.unwrap().send(&Busy {}).await.unwrap();
    let others = storage.queue::<Other>().await.unwrap();

    let (planned, sender) = (faulty.clone(), others.clone());
    let long = move |_: Busy, ctx: Context| {
        let (faulty, others) = (planned.clone(), sender.clone());
        async move {
            let throttled = throttle(&faulty).await;
            let (gets, renewals) = (faulty.calls_of(Operation::Get), faulty.calls_of(Operation::Update));
            // A send waits for a part of what it may take in all, and is tried then: no caller is held up for
            // long.
            others.send(&Other {}).await.map_err(JobError::retry)?;
            assert!(throttled.elapsed() >= Duration::from_secs(10), "{:?}", throttled.elapsed());
            tokio::time::sleep(PAUSE - Duration::from_secs(1) - throttled.elapsed()).await;
            // The other queue's get may have been under way when the storage asked to slow down.
            assert!(faulty.calls_of(Operation::Get) <= gets + 1);
            assert!(faulty.calls_of(Operation::Update) >= renewals + 3);
            assert!(!ctx.is_cancelled());
            Ok::<(), JobError>(())
        }
    };
    let other = async |_: Other| Ok::<(), JobError>(());
    let worker = Worker::builder(storage.with_runtime(Runtime::paused())).handle(long).handle(other);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 2);
    assert_eq!(report.lease_lost, 0);
}

/// Throttling affects the whole storage, whatever request meets it: a throttled renewal delays polling too.
// F20
#[tokio::test(start_paused = true)]
async fn throttled_renewal_holds_up_polling() {
    let faulty = Faulty::new(&Storage::memory());
    let storage = faulty.storage();
    storage.queue::<Busy>().await.unwrap().send(&Busy {}).await.unwrap();
    let planned = faulty.clone();
    let long = move |_: Busy, ctx: Context| {
        let faulty = planned.clone();
        async move {
            let renewals = faulty.calls_of(Operation::Update);
            // One that was applied would have taken the receipt with it.
            faulty.plan(Operation::Update, 1, not_applied(PAUSE));
            while faulty.calls_of(Operation::Update) == renewals {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            tokio::time::sleep(AzureLike::SLOWEST).await;
            let gets = faulty.calls_of(Operation::Get);
            tokio::time::sleep(PAUSE / 2).await;
            assert!(faulty.calls_of(Operation::Get) <= gets + 1);
            assert!(!ctx.is_cancelled(), "the renewal is repeated in time, whatever the storage asks for");
            Ok::<(), JobError>(())
        }
    };
    let worker = Worker::builder(storage.with_runtime(Runtime::paused())).handle(long);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.lease_lost, 0);
}

/// Two ways in which a busy storage refuses: with certainty, and like Azure, which does not promise that
/// nothing was done.
const BUSY: [Fault; 2] =
    [Fault::Refuse(StoreErrorKind::Throttled), Fault::LoseRequest(StoreErrorKind::Throttled)];

/// Returns a storage in memory that refuses as `fault` says.
fn refusing(fault: Fault) -> Faulty {
    match fault {
        // Quiet: only such a storage refuses with certainty.
        Fault::Refuse(_) => Faulty::quiet(&in_memory()),
        _ => Faulty::new(&in_memory()),
    }
}

/// Returns the fault of a throttled change that was not applied, which the storage does not tell.
fn not_applied(retry_after: Duration) -> Fault {
    Fault::ThrottleInDoubt { retry_after, applied: false }
}

/// A wrapper around a sharded storage does not make one load of its shards: a throttled deletion on one of
/// them holds up no send to the others.
// F86
#[tokio::test(start_paused = true)]
async fn throttled_deletion_in_a_wrapped_shard_delays_no_send() {
    let faulty = Faulty::new(&Storage::memory());
    let sharded = Sharded::builder().account("a", faulty.storage()).shards("busy", 2).build().unwrap();
    let sharded = Storage::from(sharded.stores());
    let own = Storage::new(Arc::clone(sharded.queues().store()), Arc::clone(sharded.blobs()), "wrapped");
    for storage in [sharded, own] {
        let busy = storage.queue::<Busy>().await.unwrap();
        busy.send(&Busy {}).await.unwrap();
        let (queues, name) = (storage.queues(), "busy".parse().unwrap());
        let received = queues.get(&name, GetMessages::new(1, PAUSE)).await.unwrap();
        faulty.plan(Operation::Delete, 1, Fault::Throttle(PAUSE));
        let deleted = queues.delete(&name, &received.messages[0].message, ExpiredReceipt::Refuse).await;
        assert_eq!(deleted.unwrap_err().kind(), StoreErrorKind::Throttled);
        let begun = Instant::now();
        busy.send(&Busy {}).await.unwrap();
        assert!(begun.elapsed() <= AzureLike::SLOWEST, "{:?}", begun.elapsed());
    }
}

/// A throttled shard holds up neither sends to the others, nor their jobs, whichever request of it is
/// refused.
// F86
#[tokio::test(start_paused = true)]
async fn throttled_shard_holds_up_no_keys_of_the_others() {
    for fault in [not_applied(PAUSE), Fault::Throttle(PAUSE)] {
        // Quiet: a throttled change is certainly not applied.
        let faulty = Faulty::quiet(&in_memory());
        let sharded = Sharded::builder().account("a", faulty.storage()).shards("tasks", 8).build().unwrap();
        let storage = Storage::from(sharded.stores());
        let tasks = storage.queue::<Task>().await.unwrap();
        for operation in [Operation::Put, Operation::Get, Operation::Peek] {
            faulty.on(operation, move |call| (call.subject == "tasks-s3v1").then_some(fault));
        }
        storage.queues().peek(&"tasks".parse().unwrap(), 1).await.unwrap_err();
        let (begun, ran) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
        let log = Arc::clone(&ran);
        let handler = move |_: Task| {
            log.lock().unwrap().push(begun.elapsed());
            std::future::ready(Ok::<(), JobError>(()))
        };
        let sending = async {
            let sends = (0..40).map(|number| {
                let task = task(number.to_string());
                let tasks = &tasks;
                async move { tasks.send(&task).await.is_ok() }
            });
            let sent = futures_util::future::join_all(sends).await;
            sent.into_iter().filter(|sent| *sent).count()
        };
        let mut sent = 0;
        let running = worker(&storage).handle(handler).build().unwrap();
        let sent_and_run = async {
            sent = sending.await;
            after(10).await;
        };
        let _ = running.run_until(sent_and_run).await.unwrap();
        let ran = ran.lock().unwrap();
        assert!((20..40).contains(&sent), "{sent} of 40 keys are in other shards");
        assert_eq!(ran.len(), sent);
        assert!(ran.iter().all(|at| *at < Duration::from_secs(5)), "{ran:?}");
    }
}

/// An answer may ask for any pause. The storage is looked at again before long, whatever it asked for.
// F20
#[tokio::test(start_paused = true)]
async fn pause_of_an_hour_is_not_taken() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    faulty.plan(Operation::Get, 1, Fault::Throttle(Duration::from_secs(3600)));
    let handler = |_: Task| std::future::ready(Ok::<(), JobError>(()));
    let running = worker(&faulty.storage()).handle(handler).build().unwrap();
    let sending = async {
        after(1).await;
        let _ = queue.send(&task("one")).await.unwrap();
        after(400).await;
    };
    assert_eq!(running.run_until(sending).await.unwrap().completed, 1);
}

/// Makes `operations` fail for this time.
fn busy_for(faulty: &Faulty, operations: &'static [Operation], fault: Fault, seconds: u64) {
    for operation in operations {
        faulty.plan_always(*operation, fault);
    }
    let faulty = faulty.clone();
    tokio::spawn(async move {
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        faulty.heal();
    });
}

// B14: a send has 30 seconds.
#[tokio::test(start_paused = true)]
async fn a_throttled_send_is_tried_until_its_time_is_up() {
    let large = Task { name: "large".to_owned(), data: "x".repeat(100_000) };
    for fault in BUSY {
        let faulty = refusing(fault);
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        busy_for(&faulty, &[Operation::Put, Operation::PutAll], fault, 20);
        let _ = queue.send(&task("one")).await.unwrap();
        busy_for(&faulty, &[Operation::Put, Operation::PutAll], fault, 20);
        let sent = queue.send_all(&[task("two"), task("three")]).await.unwrap();
        assert!(sent.iter().all(Result::is_ok), "{fault:?}: {sent:?}");
        busy_for(&faulty, &[Operation::PutBlob], fault, 20);
        let _ = queue.send(&large).await.unwrap();
        assert_eq!(queue.approximate_len().await.unwrap(), 4, "{fault:?}");
    }
}

/// A busy storage applies some of the sends that it throttles, and does not tell: these jobs are stored
/// several times.
#[tokio::test(start_paused = true)]
async fn throttled_sends_are_all_done_whatever_was_applied() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let large = Task { name: "large".to_owned(), data: "x".repeat(100_000) };
    let throttle = Fault::Throttle(Duration::from_secs(3));
    busy_for(&faulty, &[Operation::Put, Operation::PutAll, Operation::PutBlob], throttle, 20);
    let _ = queue.send(&task("one")).await.unwrap();
    busy_for(&faulty, &[Operation::Put, Operation::PutAll, Operation::PutBlob], throttle, 20);
    let sent = queue.send_all(&[task("two"), large]).await.unwrap();
    assert!(sent.iter().all(Result::is_ok), "{sent:?}");
    assert!(queue.approximate_len().await.unwrap() > 3, "some were applied");
    let runs = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&runs);
    let handler = move |task: Task| {
        sink.lock().unwrap().push(task.name);
        std::future::ready(Ok::<(), JobError>(()))
    };
    let built = worker(&faulty.storage()).concurrency(1).handle(handler).build().unwrap();
    let _ = built.run_until(after(600)).await.unwrap();
    let mut runs = runs.lock().unwrap().clone();
    runs.sort();
    runs.dedup();
    assert_eq!(runs, ["large", "one", "two"]);
    assert!(queue.is_empty().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn a_send_that_is_throttled_to_its_end_says_what_is_known() {
    for fault in BUSY {
        let faulty = refusing(fault);
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        faulty.plan_always(Operation::Put, fault);
        let started = Instant::now();
        let error = queue.send(&task("one")).await.unwrap_err();
        assert!(started.elapsed() > Duration::from_secs(20), "{:?}", started.elapsed());
        assert!(started.elapsed() <= Duration::from_secs(31), "{:?}", started.elapsed());
        assert_eq!(error.is_rejected(), fault == BUSY[0], "{error}");
        assert_eq!(error.is_outcome_unknown(), fault == BUSY[1], "{error}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_throttled_send_waits_as_long_as_it_is_asked_to() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    for nth in 1..=3 {
        faulty.plan(Operation::Put, nth, Fault::Throttle(Duration::from_secs(7)));
    }
    let _ = queue.send(&task("one")).await.unwrap();
    let at: Vec<_> =
        faulty.calls().iter().filter(|call| call.operation == Operation::Put).map(|call| call.at).collect();
    assert_eq!(at.len(), 4);
    assert!(at.windows(2).all(|two| two[1] - two[0] >= Duration::from_secs(7)), "{at:?}");
}

// B14: a deletion and a release have the rest of their lease.
#[tokio::test(start_paused = true)]
async fn a_job_is_settled_although_the_storage_is_busy() {
    for fault in BUSY {
        for works in [true, false] {
            let faulty = refusing(fault);
            let queue = faulty.storage().queue::<Task>().await.unwrap();
            let _ = queue.send(&task("one")).await.unwrap();
            let plan = faulty.clone();
            let handler = move |_: Task| {
                busy_for(&plan, &[Operation::Delete, Operation::DeleteAll, Operation::Update], fault, 20);
                std::future::ready(if works { Ok(()) } else { Err(JobError::retry("not today")) })
            };
            let (log, listener) = outcomes();
            let built = worker(&faulty.storage()).handle(handler).on_event(listener).build().unwrap();
            let _ = built.run_until(after(25)).await.unwrap();
            let expected = if works { "completed" } else { "retried" };
            assert_eq!(log.lock().unwrap()[0], expected, "{fault:?}");
        }
    }
}

// B14: the messages of one list wait together.
#[tokio::test(start_paused = true)]
async fn a_throttled_list_is_sent_again_as_a_list() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    for nth in 1..=3 {
        faulty.plan(Operation::PutAll, nth, not_applied(Duration::from_secs(8)));
    }
    let tasks: Vec<Task> = (0..100).map(|number| task(number.to_string())).collect();
    let sent = queue.send_all(&tasks).await.unwrap();
    assert!(sent.iter().all(Result::is_ok));
    assert_eq!(faulty.calls_of(Operation::PutAll), 4);
    assert_eq!(faulty.calls_of(Operation::Put), 0);
    assert_eq!(queue.approximate_len().await.unwrap(), 100);
}
