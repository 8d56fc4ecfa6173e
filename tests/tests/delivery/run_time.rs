//! The maximum run time of a job: it counts while the handler runs, and a handler that ends within its grace
//! has ended.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::codec::Json;
use jobqueue::message::MessageDefaults;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::validate::{Path, Violations};
use jobqueue::{Context, JobError, QueueMessage, Validate};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use super::redrive::large;

#[tokio::test(start_paused = true)]
async fn a_download_takes_nothing_of_the_run_time() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    faulty.plan_always(Operation::GetBlob, Fault::DelayBefore(Duration::from_secs(90)));
    let handler = |_: Task| async {
        after(50).await;
        Ok::<(), JobError>(())
    };
    let built =
        worker(&faulty.storage()).max_run_time(Duration::from_secs(60)).handle(handler).build().unwrap();
    let report = built.run_until(after(600)).await.unwrap();
    assert_eq!((report.completed, report.lease_lost, report.retried), (1, 0, 0), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn success_within_the_grace_after_the_run_time_completes_the_job() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |_: Task, ctx: Context| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move {
            ctx.token().cancelled().await;
            after(1).await;
            Ok::<(), JobError>(())
        }
    };
    let built = worker(&storage)
        .max_run_time(Duration::from_secs(60))
        .cancel_grace(Duration::from_secs(5))
        .handle(handler)
        .build()
        .unwrap();
    let report = built.run_until(after(600)).await.unwrap();
    assert_eq!((runs.load(Ordering::Relaxed), report.completed, report.retried), (1, 1, 0), "{report:?}");
    assert_eq!(queue.approximate_len().await.unwrap(), 0);
}

/// The put-back writes the checkpoint into a blob, which the storage has refused before.
// round 29, core 6: the lease was lost meanwhile, and the attempt was not counted.
#[tokio::test(start_paused = true)]
async fn attempt_counts_although_its_put_back_takes_longer_than_the_lease() {
    const RUN_TIME: Duration = Duration::from_secs(60);
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let began = Instant::now();
    faulty.on(Operation::PutBlob, move |_| {
        let is_running = began.elapsed() < RUN_TIME;
        let slow = Fault::DelayAfter(Duration::from_secs(20));
        Some(if is_running { Fault::Refuse(StoreErrorKind::Unavailable) } else { slow })
    });
    let attempts: Arc<Mutex<Vec<u32>>> = Arc::default();
    let sink = Arc::clone(&attempts);
    let handler = move |_: Task, ctx: Context| {
        let attempt = ctx.info().attempt;
        sink.lock().unwrap().push(attempt);
        let is_second = sink.lock().unwrap().len() == 2;
        async move {
            if is_second {
                return Ok::<(), JobError>(());
            }
            drop(ctx.checkpoint(&"x".repeat(50_000)).await);
            std::future::pending().await
        }
    };
    let built = worker(&faulty.storage()).max_run_time(RUN_TIME).handle(handler).build().unwrap();
    let _ = built.run_until(after(600)).await.unwrap();
    assert_eq!(*attempts.lock().unwrap(), [1, 2]);
}

/// A job that may run for a minute.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "short", kind = "short", lease = "30s", max_run_time = "60s")]
struct Short {}

/// Its put-back, too, writes the checkpoint into a blob, which the storage has refused before.
// round 30, core 6: the lease was lost meanwhile, and the attempt was not counted.
#[tokio::test(start_paused = true)]
async fn attempt_by_hand_counts_although_its_put_back_takes_longer_than_the_lease() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Short>().await.unwrap();
    let _ = queue.send(&Short {}).await.unwrap();
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    let delivery = queue.receive(Duration::from_secs(1)).await.unwrap().unwrap();
    drop(delivery.checkpoint(&"x".repeat(50_000)).await);
    delivery.token().cancelled().await;
    // The first of two finds no container. The lease has ten seconds left.
    faulty.plan_always(Operation::PutBlob, Fault::DelayAfter(Duration::from_secs(20)));
    delivery.fail(Duration::ZERO, "it took too long").await.unwrap();
    let next = queue.receive(Duration::from_secs(60)).await.unwrap().unwrap();
    assert_eq!(next.info().attempt, 2);
}

// review 6, R1b
#[tokio::test(start_paused = true)]
async fn job_whose_preparation_takes_too_long_says_so_while_it_waits() {
    let storage = in_memory();
    let faulty = Faulty::new(&storage);
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&large("a")).await.unwrap();
    faulty.plan_always(Operation::GetBlob, Fault::DelayBefore(Duration::from_secs(1_000)));
    let run = async |seconds| {
        let handler = |_: Task| async { Ok::<(), JobError>(()) };
        let limit = Duration::from_secs(60);
        let built = worker(&faulty.storage()).max_run_time(limit).handle(handler).build().unwrap();
        built.run_until(after(seconds)).await.unwrap()
    };
    let report = run(3_500).await;
    assert_eq!((report.completed, report.dead_lettered), (0, 0), "{report:?}");
    after(60).await;
    let text = storage.queues().peek(queue.name(), 1).await.unwrap().remove(0).text.unwrap();
    assert!(text.contains("slow_preparation"), "{text}");
    faulty.heal();
    assert_eq!(run(600).await.completed, 1);
}

#[derive(Serialize, Deserialize)]
struct ByHand {}

impl Validate for ByHand {
    fn validate_into(&self, _: &Path<'_>, _: &mut Violations) {}
}

impl QueueMessage for ByHand {
    const QUEUE: &'static str = "by-hand";
    const KIND: &'static str = "by-hand";
    const DEFAULTS: MessageDefaults = MessageDefaults::new().with_max_run_time(Duration::MAX);
    type Codec = Json;
}

// AU20-5: no job of the type ran, or ended.
#[tokio::test(start_paused = true)]
async fn run_time_without_end_of_a_message_that_is_written_by_hand_is_a_long_one() {
    let storage = in_memory();
    let _ = storage.queue::<ByHand>().await.unwrap().send(&ByHand {}).await.unwrap();
    let handler = async |_: ByHand| Ok::<(), JobError>(());
    let report = worker(&storage).handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(report.completed, 1, "{report:?}");
}
