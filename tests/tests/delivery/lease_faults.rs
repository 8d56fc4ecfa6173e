//! Leases, deliveries and workers when the storage is slow, silent or busy.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::settings::SettingOverrides;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::{CheckpointOutcome, CircuitBreaker};
use jobqueue::{Context, JobError, QueueMessage};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, in_memory, outcomes, task, worker};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

const LOST_ANSWER: Fault = Fault::DropAnswer(StoreErrorKind::Timeout);

// B2
#[tokio::test(start_paused = true)]
async fn a_checkpoint_in_doubt_keeps_what_it_refers_to() {
    for refusal in [StoreErrorKind::Throttled, StoreErrorKind::Unavailable] {
        let faulty = Faulty::new(&in_memory());
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        // With a checkpoint the payload moves out too.
        let _ = queue.send(&Task { name: "a".to_owned(), data: "d".repeat(40_000) }).await.unwrap();
        let (plan, runs) = (faulty.clone(), Log::default());
        let sink = Arc::clone(&runs);
        let handler = move |job: Task, ctx: Context| {
            let (plan, sink) = (plan.clone(), Arc::clone(&sink));
            async move {
                let saved: Option<String> = ctx.resume().await.map_err(JobError::retry)?;
                sink.lock().unwrap().push(format!("{} {:?}", job.data.len(), saved.map(|text| text.len())));
                if sink.lock().unwrap().len() > 1 {
                    return Ok(());
                }
                plan.plan_always(Operation::Update, Fault::Refuse(refusal));
                plan.plan(Operation::Update, 1, LOST_ANSWER);
                let told = ctx.checkpoint(&"c".repeat(40_000)).await?;
                assert_eq!(told, CheckpointOutcome::Unknown);
                plan.heal();
                Err(JobError::retry("again"))
            }
        };
        let built = worker(&faulty.storage()).handle(handler).build().unwrap();
        let report = built.run_until(after(120)).await.unwrap();
        assert_eq!(*runs.lock().unwrap(), ["40000 None", "40000 Some(40000)"], "{refusal:?}");
        assert_eq!(report.completed, 1);
        assert_eq!(report.dead_lettered, 0);
    }
}

// B9
#[tokio::test(start_paused = true)]
async fn a_context_that_outlives_its_worker_holds_no_lease() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let kept: Arc<Mutex<Vec<Context>>> = Arc::default();
    let sink = Arc::clone(&kept);
    let handler = move |_: Task, ctx: Context| {
        sink.lock().unwrap().push(ctx);
        std::future::pending::<Result<(), JobError>>()
    };
    let running = tokio::spawn(worker(&storage).handle(handler).build().unwrap().run_until(after(3_600)));
    after(5).await;
    running.abort();
    assert!(running.await.unwrap_err().is_cancelled());
    after(35).await;
    let context = kept.lock().unwrap()[0].clone();
    assert!(context.is_cancelled());
    assert!(context.checkpoint(&1).await.unwrap_err().is_lease_lost());
    let delivery = queue.receive(Duration::from_secs(1)).await.unwrap().expect("the lease has ended");
    delivery.complete().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_job_beyond_its_run_time_costs_an_attempt_however_long_its_grace_is() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let handler = |_: Task| std::future::pending::<Result<(), JobError>>();
    let builder =
        worker(&storage).max_run_time(Duration::from_secs(60)).cancel_grace(Duration::from_secs(45));
    let report = builder.handle(handler).build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!((report.retried, report.dead_lettered), (2, 1), "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn a_success_counts_although_the_run_time_ends_in_its_last_poll() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let handler = |_: Task| async {
        after(60).await;
        Ok::<(), JobError>(())
    };
    let builder = worker(&storage).max_run_time(Duration::from_secs(60)).handle(handler);
    let report = builder.build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!((report.completed, report.retried), (1, 0));
}

// B17
#[tokio::test(start_paused = true)]
async fn a_get_that_hangs_does_not_hold_up_a_shutdown() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    faulty.plan(Operation::Get, 1, Fault::HangAfter);
    let built = worker(&faulty.storage()).handle(async |_: Task| Ok::<(), JobError>(())).build().unwrap();
    let _ = tokio::time::timeout(Duration::from_secs(8), built.run_until(after(5))).await.unwrap().unwrap();
    after(30).await;
    assert!(queue.receive(Duration::from_secs(1)).await.unwrap().is_some(), "it comes back by itself");
}

/// A worker with many free slots asks by several requests at once.
#[tokio::test(start_paused = true)]
async fn get_that_hangs_holds_up_no_message_of_the_gets_beside_it() {
    // The stop comes after five seconds: the second answer comes before it, or within the second that is left
    // to it.
    for (delay, completed, released) in [(1_000, 64, 0), (5_500, 32, 32)] {
        // Quiet: the second and the third get are those of one round.
        let faulty = Faulty::quiet(&in_memory());
        let queue = faulty.storage().queue::<Task>().await.unwrap();
        let tasks: Vec<_> = (0..96).map(|number| task(number.to_string())).collect();
        let _ = queue.send_all(&tasks).await.unwrap();
        faulty.plan(Operation::Get, 2, Fault::DelayAfter(Duration::from_millis(delay)));
        faulty.plan(Operation::Get, 3, Fault::Hang);
        let handler = async |_: Task| {
            after(2).await;
            Ok::<(), JobError>(())
        };
        let built = worker(&faulty.storage()).concurrency(96).handle(handler).build().unwrap();
        let report = built.run_until(after(5)).await.unwrap();
        assert_eq!(report.completed, completed, "{report:?}");
        assert_eq!(report.released, released, "{report:?}");
    }
}

/// The worker waits for the answer to a get under way at the end: the messages that it leased are put back at
/// once.
#[tokio::test(start_paused = true)]
async fn message_fetched_during_a_shutdown_is_put_back_at_once() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    faulty.plan(Operation::Get, 1, Fault::DelayAfter(Duration::from_millis(5_500)));
    let built = worker(&faulty.storage()).handle(async |_: Task| Ok::<(), JobError>(())).build().unwrap();
    let _ = built.run_until(after(5)).await.unwrap();
    assert!(queue.receive(Duration::from_secs(1)).await.unwrap().is_some());
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "slow", kind = "slow")]
struct Slow {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "fast", kind = "fast")]
struct Fast {}

// B16
#[tokio::test(start_paused = true)]
async fn a_queue_that_is_opened_slowly_holds_up_no_other() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    for name in ["slow", "fast"] {
        let _ = queue.send(&task(name)).await.unwrap();
    }
    for operation in [Operation::QueueMetadata, Operation::CreateQueue] {
        faulty.on(operation, |call| {
            (call.subject == "slow").then_some(Fault::DelayBefore(Duration::from_secs(40)))
        });
    }
    let opened: Arc<Mutex<Vec<(String, Duration)>>> = Arc::default();
    let sink = Arc::clone(&opened);
    let handler = move |job: Task, ctx: Context| {
        let sink = Arc::clone(&sink);
        async move {
            let started = Instant::now();
            if job.name == "slow" {
                let _ = ctx.queue::<Slow>().await.map_err(JobError::retry)?;
            } else {
                after(1).await;
                let _ = ctx.queue::<Fast>().await.map_err(JobError::retry)?;
            }
            sink.lock().unwrap().push((job.name, started.elapsed()));
            Ok::<(), JobError>(())
        }
    };
    let _ = worker(&faulty.storage()).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    let opened = opened.lock().unwrap();
    assert_eq!(opened[0].0.as_str(), "fast");
    assert_eq!(opened.len(), 2);
    assert!(opened[0].1 < Duration::from_secs(5), "{opened:?}");
}

/// A connection that was cut while the worker read its queues ended its start with an error.
#[tokio::test(start_paused = true)]
async fn start_goes_on_after_a_failure_that_passes() {
    for operation in [Operation::QueueMetadata, Operation::CreateQueue] {
        let faulty = Faulty::new(&in_memory());
        let _ = faulty.storage().queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
        faulty.plan(operation, 1, Fault::Refuse(StoreErrorKind::Unavailable));
        let handler = |_: Task| async { Ok::<(), JobError>(()) };
        let report = worker(&faulty.storage()).handle(handler).build().unwrap().run_until_idle().await;
        assert_eq!(report.unwrap().completed, 1, "{operation:?}");
        // One that lasts is an error soon, for a supervisor.
        faulty.plan_always(Operation::QueueMetadata, Fault::Refuse(StoreErrorKind::Unavailable));
        let began = Instant::now();
        let error = worker(&faulty.storage()).handle(handler).build().unwrap().run_until_idle().await;
        assert!(error.unwrap_err().is_retryable() && began.elapsed() < Duration::from_secs(15));
    }
}

// C12
#[tokio::test(start_paused = true)]
async fn queues_of_a_worker_are_opened_together() {
    let faulty = Faulty::new(&in_memory());
    for operation in [Operation::QueueMetadata, Operation::CreateQueue] {
        faulty.on(operation, |_| Some(Fault::DelayBefore(Duration::from_secs(10))));
    }
    let began = Instant::now();
    let worker = worker(&faulty.storage())
        .handle(|_: Task| async { Ok::<(), JobError>(()) })
        .handle(|_: Slow| async { Ok::<(), JobError>(()) })
        .handle(|_: Fast| async { Ok::<(), JobError>(()) });
    let _ = worker.build().unwrap().run_until_idle().await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(45), "{:?}", began.elapsed());
}

/// A poller that has waited for a slot after it was permitted to fetch.
#[tokio::test(start_paused = true)]
async fn a_circuit_that_opens_while_a_slot_is_awaited_holds() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..4 {
        let _ = queue.send(&task(number.to_string())).await.unwrap();
    }
    let (log, listener) = outcomes();
    let handler = async |_: Task| {
        after(1).await;
        Err::<(), _>(JobError::retry("down"))
    };
    let minute = Duration::from_secs(60);
    let circuit = CircuitBreaker::new().failures(1).jobs(1).pause(minute, minute);
    let built = worker(&storage).concurrency(1).circuit_breaker(circuit).handle(handler).on_event(listener);
    let _ = built.build().unwrap().run_until(after(30)).await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["retried"]);
}

// D8
#[tokio::test(start_paused = true)]
async fn an_open_circuit_is_tried_by_one_job_while_others_end() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..12 {
        let _ = queue.send(&task(number.to_string())).await.unwrap();
    }
    let begun: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let sink = Arc::clone(&begun);
    let started = Instant::now();
    // The first six are under way when the circuit opens, and end one after the other.
    let handler = move |_: Task| {
        let number = {
            let mut begun = sink.lock().unwrap();
            begun.push(Instant::now());
            begun.len() as u64
        };
        async move {
            after(if number <= 6 { number } else { 20 }).await;
            Err::<(), _>(JobError::retry("down"))
        }
    };
    let circuit = CircuitBreaker::new().failures(1).jobs(1);
    let circuit = circuit.pause(Duration::from_secs(1), Duration::from_secs(60));
    let built = worker(&storage).concurrency(6).circuit_breaker(circuit).handle(handler).build().unwrap();
    let _ = built.run_until(after(15)).await.unwrap();
    let probes =
        begun.lock().unwrap().iter().filter(|at| **at - started > Duration::from_millis(500)).count();
    assert_eq!(probes, 1);
}

// C17
#[tokio::test(start_paused = true)]
async fn a_half_open_circuit_tries_more_jobs_while_its_probe_runs_for_long() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let begun = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let sink = Arc::clone(&begun);
    let handler = move |_: Task| {
        let is_first = sink.fetch_add(1, std::sync::atomic::Ordering::Relaxed) == 0;
        async move {
            if is_first {
                return Err(JobError::retry_after(Duration::from_secs(86_400), "down"));
            }
            after(3_600).await;
            Ok(())
        }
    };
    let circuit = CircuitBreaker::new().failures(1).jobs(1);
    let built = worker(&storage).concurrency(8).circuit_breaker(circuit).handle(handler).build().unwrap();
    let running = tokio::spawn(built.run_until(after(300)));
    for (number, pause) in [3, 0, 0, 0, 0, 0, 0, 0, 0, 0].into_iter().enumerate() {
        let _ = queue.send(&task(number.to_string())).await.unwrap();
        after(pause).await;
    }
    after(20).await;
    assert_eq!(begun.load(std::sync::atomic::Ordering::Relaxed), 2, "the probe alone at first");
    let _ = running.await.unwrap().unwrap();
    assert_eq!(begun.load(std::sync::atomic::Ordering::Relaxed), 9, "then all eight slots");
}

// B11
#[tokio::test(start_paused = true)]
async fn the_longest_duration_is_taken_for_without_end() {
    const MAX: Duration = Duration::MAX;
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    for name in ["one", "two", "three", "four"] {
        let _ = queue.send(&task(name)).await.unwrap();
    }
    let delivery = queue.receive(MAX).await.unwrap().unwrap();
    delivery.release(MAX).await.unwrap();
    let delivery = queue.receive(MAX).await.unwrap().unwrap();
    delivery.fail(MAX, "later").await.unwrap();
    let circuit = CircuitBreaker::new().failures(1).jobs(1).pause(MAX, MAX);
    let built = worker(&storage)
        .max_run_time(MAX)
        .cancel_grace(MAX)
        .shutdown_timeout(MAX)
        .max_idle_delay(MAX)
        .settings_refresh(MAX)
        .sweep_every(MAX)
        .concurrency(1)
        .circuit_breaker(circuit);
    let failed = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let handler = move |_: Task| {
        let first = !failed.swap(true, std::sync::atomic::Ordering::Relaxed);
        std::future::ready(if first { Ok(()) } else { Err(JobError::retry_after(MAX, "down")) })
    };
    let report = built.handle(handler).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.retried, 1);
    let snooze = |_: Task| std::future::ready(Err::<(), _>(JobError::snooze(MAX)));
    let _ = queue.send(&task("five")).await.unwrap();
    let report = worker(&storage).handle(snooze).build().unwrap().run_until(after(5)).await.unwrap();
    assert_eq!(report.released, 1);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_no_storage_gives_is_refused_at_once() {
    for (seconds, allowed) in [(7 * 86_400, true), (7 * 86_400 + 1, false), (0, false)] {
        let mut overrides = SettingOverrides::default();
        overrides.timeout = Some(Duration::from_secs(seconds));
        let built = worker(&in_memory()).overrides(overrides).handle(async |_: Task| Ok::<(), JobError>(()));
        assert_eq!(built.build().is_ok(), allowed, "{seconds} s");
    }
}
