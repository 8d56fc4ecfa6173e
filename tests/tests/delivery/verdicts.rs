//! The errors of a handler, and what follows from them for its message and for the circuit of its queue.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::CircuitBreaker;
use jobqueue::{Context, Event, JobError, Reason};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};

use super::redrive::large;

// newcomers 28, A5
#[tokio::test(start_paused = true)]
async fn refusal_of_an_invalid_message_that_a_handler_passes_on_is_a_dead_letter() {
    let storage = in_memory();
    let tasks = storage.queue::<Task>().await.unwrap();
    for number in 0..30 {
        tasks.send(&task(number.to_string())).await.unwrap();
    }
    let handler = async |_: Task, ctx: Context| {
        ctx.queue_named::<Task>("others").await?.send(&task("")).await?;
        Ok::<(), JobError>(())
    };
    let opened = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&opened);
    let worker = worker(&storage).concurrency(1).handle(handler).on_event(move |event| {
        if let Event::CircuitOpened { .. } = event {
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let report = worker.build().unwrap().run_until(after(1)).await.unwrap();
    assert_eq!(report.retried, 0);
    assert_eq!(report.dead_lettered, 20, "then the circuit is open");
    assert_eq!(opened.load(Ordering::SeqCst), 1);
    let letter = tasks.dead_letters().unwrap().peek().await.unwrap().remove(0);
    assert_eq!(letter.reason, Reason::INVALID_SEND);
    let error = letter.error.unwrap();
    assert!(error.contains("name: must not be empty"), "{error}");
}

// newcomers 28, C12
#[tokio::test(start_paused = true)]
async fn message_keeps_the_cause_of_a_snooze() {
    let storage = in_memory();
    let tasks = storage.queue::<Task>().await.unwrap();
    tasks.send(&task("a")).await.unwrap();
    let handler = async |_: Task, ctx: Context| {
        let wait = Duration::from_secs(60);
        match ctx.info().dequeue_count {
            1 => Err::<(), _>(JobError::snooze_because(wait, "the endpoint answered 429")),
            _ => Err(JobError::snooze(wait)),
        }
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    assert_eq!(worker.run_until(after(150)).await.unwrap().released, 3);
    after(60).await;
    let peeked = storage.queues().peek(tasks.name(), 1).await.unwrap();
    let event: serde_json::Value = serde_json::from_str(peeked[0].text.as_deref().unwrap()).unwrap();
    assert_eq!(event["lasterror"], "the endpoint answered 429", "a snooze without a cause leaves it");
    assert!(event.get("attempts").is_none(), "{event}");
}

async fn fail(_: Task) -> Result<(), JobError> {
    Err(JobError::retry_after(Duration::from_secs(3_000), "the database is down"))
}

/// The deliveries of these jobs give the permit of their kind back while they wait for their payloads.
// review 34 c, B1
#[tokio::test(start_paused = true)]
async fn pause_of_a_circuit_doubles_also_after_an_outage_of_the_payloads() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    let tasks = storage.queue::<Task>().await.unwrap();
    for number in 0..40 {
        tasks.send(&large(&number.to_string())).await.unwrap();
    }
    faulty.plan_always(Operation::GetBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    let deferred = worker(&storage).handle(fail).build().unwrap().run_until(after(10)).await.unwrap();
    assert_eq!(deferred.retried, 0, "{deferred:?}");
    faulty.heal();
    // All jobs are visible by then.
    after(60).await;
    let pauses = Arc::<Mutex<Vec<Duration>>>::default();
    let opened = Arc::clone(&pauses);
    let listen = move |event: &Event| {
        if let Event::CircuitOpened { retry_in, .. } = event {
            opened.lock().unwrap().push(*retry_in);
        }
    };
    let breaker =
        CircuitBreaker::new().failures(2).jobs(1).pause(Duration::from_secs(1), Duration::from_secs(64));
    let worker = worker(&storage).concurrency(1).circuit_breaker(breaker).handle(fail).on_event(listen);
    let report = worker.build().unwrap().run_until(after(110)).await.unwrap();
    assert_eq!(*pauses.lock().unwrap(), [1, 2, 4, 8, 16, 32, 64].map(Duration::from_secs));
    assert!(report.retried < 15, "{report:?}");
}
