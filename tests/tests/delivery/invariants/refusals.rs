//! The operations that are repeated after each kind of answer, and the events that listeners receive: I5, I6,
//! F3, F12, F96.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Context, Event, JobError, QueueMessage, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, task, worker};
use serde::{Deserialize, Serialize};

// I6, F12
#[tokio::test(start_paused = true)]
async fn unauthorized_checkpoint_is_not_retried() {
    let faulty = Faulty::new(&memory::open());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    faulty.plan(Operation::Update, 1, Fault::Refuse(StoreErrorKind::Unauthorized));
    let handler = |_: Task, ctx: Context| async move {
        let error = ctx.checkpoint(&1).await.unwrap_err();
        assert!(!error.is_lease_lost() && !error.is_lease_uncertain(), "{error}");
        ctx.checkpoint(&2).await.unwrap();
        Ok::<(), JobError>(())
    };
    let report = worker(&faulty.storage()).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(faulty.calls_of(Operation::Update), 2);
}

// F3
#[tokio::test(start_paused = true)]
async fn throttled_deletion_is_retried() {
    let together = (Faulty::new(&memory::open()), Operation::DeleteAll, 1);
    let one_by_one = (Faulty::deleting_one_by_one(&memory::open()), Operation::Delete, 2);
    for (faulty, deletion, deletes) in [together, one_by_one] {
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        let _ = queue.send(&task("a")).await.unwrap();
        faulty.plan(deletion, 1, Fault::Throttle(Duration::from_secs(1)));
        let handler = |_: Task| async { Ok::<(), JobError>(()) };
        let worker = worker(&faulty.storage()).handle(handler).build().unwrap();
        let report = worker.run_until_idle().await.unwrap();
        assert_eq!(report.completed, 1);
        assert_eq!(faulty.calls_of(Operation::Delete), deletes);
        assert!(queue.is_empty().await.unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn completions_are_looked_up_only_where_they_are_recorded() {
    for durable in [false, true] {
        let faulty = Faulty::new(&memory::open());
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        let _ = queue.send(&task("a")).await.unwrap();
        let handler = |_: Task, ctx: Context| async move {
            match ctx.info().attempt {
                1 => Err(JobError::retry_after(Duration::ZERO, "once more")),
                _ => Ok(()),
            }
        };
        let worker = worker(&faulty.storage()).durable_completions(durable).handle(handler).build().unwrap();
        assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
        // The first delivery is not looked up: nothing can have been recorded of it.
        assert_eq!(faulty.calls_of(Operation::BlobProperties), usize::from(durable));
    }
}

/// Returns the outcomes of deliveries, and the events that listeners received.
async fn told<M: QueueMessage>(message: M, seconds: u64) -> Vec<(String, Duration, Option<String>)> {
    let storage = memory::open();
    let _ = storage.queue::<M>().await.unwrap().send(&message).await.unwrap();
    let ends: Arc<Mutex<Vec<_>>> = Arc::default();
    let (sink, started) = (Arc::clone(&ends), tokio::time::Instant::now());
    let listen = move |event: &Event| {
        if let Event::Finished { outcome, error, .. } = event {
            sink.lock().unwrap().push((outcome.as_str().to_owned(), started.elapsed(), error.clone()));
        }
    };
    let handler = |_: Task| async { Err::<(), _>(JobError::retry("the disk is on fire")) };
    let worker = worker(&storage).handle(handler).on_event(listen).build().unwrap();
    let _ = worker.run_until(after(seconds)).await.unwrap();
    ends.lock().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn listeners_are_told_why_a_delivery_failed() {
    let ends = told(task("a"), 1).await;
    assert!(ends[0].2.as_deref().is_some_and(|error| error.contains("the disk is on fire")), "{ends:?}");
    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "tasks", kind = "task")]
    struct Nameless {}
    let ends = told(Nameless {}, 1).await;
    assert_eq!(ends[0].0, "dead_lettered");
    assert!(ends[0].2.as_deref().is_some_and(|error| error.contains("name")), "{ends:?}");
}

// F96
#[tokio::test(start_paused = true)]
async fn unknown_kind_is_released_with_growing_delays() {
    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "tasks", kind = "task.of-tomorrow")]
    struct Tomorrow {}
    let ends = told(Tomorrow {}, 300).await;
    assert!(ends[0].2.as_deref().is_some_and(|error| error.contains("unknown_kind")), "{ends:?}");
    let between: Vec<_> = ends.windows(2).map(|pair| (pair[1].1 - pair[0].1).as_secs_f64()).collect();
    // Doubling, between half of each step and all of it. The storage announces messages, so the poller makes
    // no long pauses of its own.
    for (wait, step) in between.iter().zip([1.0, 2.0, 4.0, 8.0, 16.0, 30.0]) {
        assert!((step / 2.0 - 0.1..step + 6.0).contains(wait), "{between:?}");
    }
}
