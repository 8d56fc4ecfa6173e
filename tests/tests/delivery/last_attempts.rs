//! The last attempt of a job while its dead-letter queue cannot be written or its worker dies: the handler
//! does not run again. Nor does a job that was rejected without a run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::handler::Handler;
use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, PutMessage, StoreErrorKind};
use jobqueue::worker::CircuitBreaker;
use jobqueue::{Event, JobError, Outcome, QueueMessage, Reason, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use serde::{Deserialize, Serialize};

/// A handler that counts its runs and fails by `error`.
fn failing(runs: &Arc<AtomicU32>, error: fn() -> JobError) -> impl Handler<(Task,), Message = Task> {
    let runs = Arc::clone(runs);
    move |_: Task| {
        runs.fetch_add(1, Ordering::Relaxed);
        async move { Err::<(), _>(error()) }
    }
}

async fn counts(storage: &Storage) -> (u64, u64) {
    let queue = storage.queue::<Task>().await.unwrap();
    (queue.approximate_len().await.unwrap(), queue.dead_letters().unwrap().approximate_len().await.unwrap())
}

/// The end of a job, the number of its runs, and its reason.
type End = (fn() -> JobError, u32, &'static str);

const ENDS: [End; 2] = [
    (|| JobError::retry("always"), 3, "attempts_exhausted"),
    (|| JobError::dead_letter("never"), 1, "rejected"),
];

// B8
#[tokio::test(start_paused = true)]
async fn an_unwritable_dead_letter_queue_runs_no_handler_again() {
    for (error, bound, reason) in ENDS {
        for kind in [StoreErrorKind::Unavailable, StoreErrorKind::Unauthorized, StoreErrorKind::Full] {
            let (faulty, runs) = (Faulty::new(&in_memory()), Arc::default());
            let storage = faulty.storage();
            let queue = storage.queue::<Task>().await.unwrap();
            let _ = queue.send(&task("a")).await.unwrap();
            faulty.plan_always(Operation::Put, Fault::Refuse(kind));
            let unwritable = worker(&storage).handle(failing(&runs, error)).build().unwrap();
            let _ = unwritable.run_until(after(3600)).await.unwrap();
            assert_eq!(runs.load(Ordering::Relaxed), bound, "{kind:?}");
            assert_eq!(counts(&storage).await, (1, 0), "{kind:?}");
            faulty.heal();
            let mended = worker(&storage).handle(failing(&runs, error)).build().unwrap();
            let _ = mended.run_until(after(120)).await.unwrap();
            assert_eq!(runs.load(Ordering::Relaxed), bound, "{kind:?}");
            assert_eq!(counts(&storage).await, (0, 1), "{kind:?}");
            let letter = queue.dead_letters().unwrap().peek().await.unwrap().remove(0);
            assert_eq!(letter.reason.as_str(), reason);
            assert_eq!(letter.attempts, bound);
            assert!(letter.error.is_some_and(|error| error == "always" || error == "never"));
        }
    }
}

// round 30, core 3: each of their deliveries took a permit of the messages that have not run.
#[tokio::test(start_paused = true)]
async fn jobs_that_have_run_wait_for_no_rate_after_an_outage_of_their_dead_letter_queue() {
    const JOBS: u64 = 200;
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..JOBS {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Unavailable));
    let handler = failing(&Arc::default(), || JobError::dead_letter("never"));
    let builder = worker(&storage).circuit_breaker(None).rejections_per_second(1);
    let healing = async {
        after(60).await;
        assert_eq!(counts(&storage).await, (JOBS, 0));
        faulty.heal();
        after(60).await;
    };
    let report = builder.handle(handler).build().unwrap().run_until(healing).await.unwrap();
    assert_eq!(counts(&storage).await, (0, JOBS), "{report:?}");
}

// B8: the worker dies after the last attempt, before there is a dead letter.
#[tokio::test(start_paused = true)]
async fn a_death_after_the_last_attempt_runs_no_handler_again() {
    for (error, bound, reason) in ENDS {
        let (faulty, runs) = (Faulty::new(&in_memory()), Arc::default());
        let storage = faulty.storage();
        let queue = storage.queue::<Task>().await.unwrap();
        let _ = queue.send(&task("a")).await.unwrap();
        faulty.plan_always(Operation::Put, Fault::Hang);
        let dying = worker(&storage).handle(failing(&runs, error)).build().unwrap();
        let dying = dying.run_until(std::future::pending());
        assert!(tokio::time::timeout(Duration::from_secs(120), dying).await.is_err());
        faulty.heal();
        let next = worker(&storage).handle(failing(&runs, error)).build().unwrap();
        let _ = next.run_until(after(300)).await.unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), bound);
        assert_eq!(counts(&storage).await, (0, 1));
        let letter = queue.dead_letters().unwrap().peek().await.unwrap().remove(0);
        assert_eq!(letter.reason.as_str(), reason);
        assert_eq!(letter.attempts, bound);
    }
}

// B8, by hand.
#[tokio::test(start_paused = true)]
async fn a_delivery_rejected_by_hand_is_not_delivered_again() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    faulty.plan_always(Operation::Put, Fault::Refuse(StoreErrorKind::Unavailable));
    let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert!(delivery.dead_letter(Reason::REJECTED, "never").await.is_err());
    faulty.heal();
    assert!(queue.receive(Duration::from_secs(120)).await.unwrap().is_none());
    assert_eq!(counts(&storage).await, (0, 1));
}

/// The task of a later release, which accepts any name.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "task")]
struct AnyName {
    #[message(key)]
    name: String,
}

/// The worker dies between the copy of a job that it rejected without a run and the deletion of its message.
async fn rejected_and_not_deleted() -> Storage {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let event = serde_json::json!({
        "specversion": "1.0", "id": "1", "source": "/shop", "type": "task",
        "datacontenttype": "application/json", "data": { "name": "" },
    });
    storage.queues().put(queue.name(), PutMessage::new(event.to_string())).await.unwrap();
    faulty.plan_always(Operation::Delete, Fault::LoseRequest(StoreErrorKind::Unavailable));
    let old = worker(&storage).handle(failing(&Arc::default(), || JobError::retry("it ran")));
    let report = old.build().unwrap().run_until(after(10)).await.unwrap();
    faulty.heal();
    assert_eq!(report.dead_lettered, 1);
    assert_eq!(counts(&storage).await, (1, 1), "the job is in both queues");
    storage
}

/// Runs a worker of the later release. Returns the number of jobs that it ran.
async fn run_later_release(storage: &Storage) -> u64 {
    let handler = async |_: AnyName| Ok::<_, JobError>(());
    let report = worker(storage).handle(handler).build().unwrap().run_until(after(300)).await.unwrap();
    assert_eq!(counts(storage).await, (0, 0));
    report.completed
}

#[tokio::test(start_paused = true)]
async fn a_job_that_an_older_release_rejected_runs_once_after_its_redrive() {
    let storage = rejected_and_not_deleted().await;
    let letters = storage.queue::<Task>().await.unwrap().dead_letters().unwrap();
    assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved.len(), 1);
    assert_eq!(run_later_release(&storage).await, 1);
}

#[tokio::test(start_paused = true)]
async fn a_purged_job_that_an_older_release_rejected_does_not_run() {
    let storage = rejected_and_not_deleted().await;
    let letters = storage.queue::<Task>().await.unwrap().dead_letters().unwrap();
    assert_eq!(letters.purge(DeadLetterOptions::new().filter(|_| true)).await.unwrap().deleted.len(), 1);
    assert_eq!(run_later_release(&storage).await, 0);
}

// An operator lowers the number of attempts while jobs wait that have used them up.
#[tokio::test(start_paused = true)]
async fn jobs_without_an_attempt_left_open_no_circuit() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..30 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    let handler = failing(&Arc::default(), || JobError::retry_after(Duration::from_secs(60), "planted"));
    let built = worker(&storage).circuit_breaker(None).handle(handler).build().unwrap();
    assert_eq!(built.run_until(after(30)).await.unwrap().retried, 30);

    let once = Metadata::new().with("poisonthreshold", "1");
    storage.queues().set_queue_metadata(queue.name(), &once).await.unwrap();
    let opened = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&opened);
    let listener = move |event: &Event| {
        if matches!(event, Event::CircuitOpened { .. }) {
            counted.fetch_add(1, Ordering::Relaxed);
        }
    };
    let circuit = CircuitBreaker::new().failures(5).jobs(2);
    let built = worker(&storage).circuit_breaker(circuit).on_event(listener);
    let built = built.handle(async |_: Task| Ok::<_, JobError>(())).build().unwrap();
    let _ = built.run_until(after(900)).await.unwrap();
    assert_eq!(counts(&storage).await, (0, 30));
    assert_eq!(opened.load(Ordering::Relaxed), 0);
}

/// The continuation of a batch.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "joins", kind = "join")]
struct Join {}

// Its handler succeeded before all others began to fail, and its batch could not be written then.
#[tokio::test(start_paused = true)]
async fn job_that_ends_without_a_run_closes_no_circuit() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let mut batch = storage.batch("b").await.unwrap();
    batch.send(&task("child")).await.unwrap();
    batch.then(&Join {}).await.unwrap();
    let queue = storage.queue::<Task>().await.unwrap();
    for n in 0..10 {
        let _ = queue.send(&task(n.to_string())).await.unwrap();
    }
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    let healing = faulty.clone();
    // Longer than the hooks of a finished job are called again before it is put back.
    let healed = tokio::spawn(async move {
        after(90).await;
        healing.heal();
    });
    let (log, closed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (ended, counted) = (Arc::clone(&log), Arc::clone(&closed));
    let listener = move |event: &Event| match event {
        Event::Finished { outcome: Outcome::Completed, .. } => drop(ended.fetch_add(1, Ordering::Relaxed)),
        Event::CircuitClosed { .. } => drop(counted.fetch_add(1, Ordering::Relaxed)),
        _ => {}
    };
    let handler = async |task: Task| match task.name.as_str() {
        "child" => Ok(()),
        _ => Err(JobError::retry_after(Duration::from_secs(3_600), "planted")),
    };
    let minute = Duration::from_secs(60);
    let circuit = CircuitBreaker::new().failures(5).jobs(2).pause(minute, minute);
    let built = worker(&storage).circuit_breaker(circuit).on_event(listener).handle(handler).build().unwrap();
    let _ = built.run_until(after(600)).await.unwrap();
    healed.await.unwrap();
    assert_eq!(log.load(Ordering::Relaxed), 1, "the child");
    assert_eq!(closed.load(Ordering::Relaxed), 0);
}
