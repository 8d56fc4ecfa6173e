//! Effects that are recorded: a record is written for as long as the lease allows.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::Operation;
use jobqueue::{Context, Event, JobError, Outcome, Report};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_testing::simulation::Process;
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use tokio::time::timeout;

/// Runs a job whose effect lasts for some seconds and is recorded while the storage throttles blobs for some
/// seconds. Its run time ends after 600 s. Returns how often the effect happened.
async fn effects(lasts: u64, throttled: u64) -> u32 {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let effects = Arc::new(AtomicU32::new(0));
    let (count, slow) = (Arc::clone(&effects), faulty.clone());
    let handler = move |_: Task, ctx: Context| {
        let (count, slow) = (Arc::clone(&count), slow.clone());
        async move {
            let charge = || async {
                after(lasts).await;
                if count.fetch_add(1, Ordering::SeqCst) == 0 && throttled > 0 {
                    slow.plan_always(Operation::PutBlob, Fault::Throttle(Duration::from_secs(1)));
                    tokio::spawn(async move {
                        after(throttled).await;
                        slow.heal();
                    });
                }
                Ok::<_, JobError>(())
            };
            ctx.once("charge", charge).await
        }
    };
    queue.send(&task("a")).await.unwrap();
    let builder = worker(&faulty.storage()).max_run_time(Duration::from_secs(600));
    let built = builder.cancel_grace(Duration::from_secs(30)).handle(handler).build().unwrap();
    let report = built.run_until(after(2_000)).await.unwrap();
    assert_eq!(report.completed, 1, "{report:?}");
    effects.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn effect_happens_once_although_its_record_is_throttled() {
    assert_eq!(effects(0, 0).await, 1);
    assert_eq!(effects(0, 1).await, 1);
    // Longer than a lease: it is renewed meanwhile.
    assert_eq!(effects(0, 120).await, 1);
}

#[tokio::test(start_paused = true)]
async fn effect_happens_once_although_the_run_time_ends_during_its_record() {
    assert_eq!(effects(595, 15).await, 1);
}

/// Runs a job whose effect cannot be recorded for some seconds, first by a worker that stops after two
/// seconds. The handler waits for the record for `patience`, then its attempt fails. Returns how often the
/// effect happened, and the report and the retries of the first worker.
async fn effects_before_a_deploy(patience: u64, throttled: u64) -> (u32, Report, Vec<Duration>) {
    let faulty = Faulty::new(&in_memory());
    faulty.storage().queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    let effects = Arc::new(AtomicU32::new(0));
    let waits = Arc::<Mutex<Vec<Duration>>>::default();
    let run_for = async |seconds| {
        let (count, slow, waits) = (Arc::clone(&effects), faulty.clone(), Arc::clone(&waits));
        let listener = move |event: &Event| {
            if let Event::Finished { outcome: Outcome::Retried(wait), .. } = event {
                waits.lock().unwrap().push(*wait);
            }
        };
        let handler = move |_: Task, ctx: Context| {
            let (count, slow) = (Arc::clone(&count), slow.clone());
            async move {
                let charge = || async {
                    count.fetch_add(1, Ordering::SeqCst);
                    slow.plan_always(Operation::PutBlob, Fault::Throttle(Duration::from_secs(1)));
                    tokio::spawn(async move {
                        after(throttled).await;
                        slow.heal();
                    });
                    Ok::<_, JobError>(())
                };
                let recorded = timeout(Duration::from_secs(patience), ctx.once("charge", charge)).await;
                recorded.unwrap_or_else(|_| Err(JobError::retry("no record")))
            }
        };
        let builder = worker(&faulty.storage()).shutdown_timeout(Duration::ZERO);
        builder.on_event(listener).handle(handler).build().unwrap().run_until(after(seconds)).await.unwrap()
    };
    let first = run_for(2).await;
    let of_first = waits.lock().unwrap().clone();
    assert_eq!(first.completed + run_for(600).await.completed, 1);
    (effects.load(Ordering::SeqCst), first, of_first)
}

// audit 24, core B3
#[tokio::test(start_paused = true)]
async fn effect_happens_once_although_its_worker_stops_during_its_record() {
    for throttled in [2, 10] {
        let (effects, report, _) = effects_before_a_deploy(3_600, throttled).await;
        assert_eq!(effects, 1, "{throttled}");
        assert_eq!(report.abandoned, 0, "{throttled}: {report:?}");
    }
}

// audit 24, core B3
#[tokio::test(start_paused = true)]
async fn effect_happens_once_although_its_handler_does_not_wait_for_its_record() {
    for throttled in [2, 10] {
        let (effects, report, waits) = effects_before_a_deploy(1, throttled).await;
        assert_eq!(effects, 1, "{throttled}");
        assert_eq!((report.retried, report.abandoned), (1, 0), "{throttled}: {report:?}");
        // Without a record the message stays hidden for the rest of the lease, as the event says.
        let is_long = waits[0] > Duration::from_secs(10);
        assert_eq!(is_long, throttled == 10, "{throttled}: {waits:?}");
    }
}

/// Each delivery that waits for its record keeps its slot, or has one of as many places: all jobs of the
/// queue would be leased otherwise.
// review 24, core C1
#[tokio::test(start_paused = true)]
async fn few_deliveries_wait_for_the_records_of_their_effects() {
    const JOBS: usize = 10;
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    for number in 0..JOBS {
        queue.send(&task(number.to_string())).await.unwrap();
    }
    faulty.plan_always(Operation::PutBlob, Fault::Throttle(Duration::from_secs(1)));
    let effects = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&effects);
    let handler = move |_: Task, ctx: Context| {
        let count = Arc::clone(&count);
        async move {
            let charge = async || Ok::<_, JobError>(count.fetch_add(1, Ordering::SeqCst));
            let recorded = timeout(Duration::from_secs(1), ctx.once("charge", charge)).await;
            recorded.unwrap_or_else(|_| Err(JobError::retry("no record"))).map(drop)
        }
    };
    let during = async {
        after(60).await;
        assert_eq!(effects.load(Ordering::SeqCst), 2, "one with the slot, and one in the place beside it");
        faulty.heal();
        after(600).await;
    };
    let worker = worker(&faulty.storage()).concurrency(1).handle(handler).build().unwrap();
    let report = worker.run_until(during).await.unwrap();
    assert_eq!((report.completed, effects.load(Ordering::SeqCst)), (JOBS as u64, JOBS as u32), "{report:?}");
}

/// Runs a job whose effect cannot be recorded for some seconds, and whose handler gives the record up for a
/// dead letter, by a worker that stops after some seconds. Then redrives the letter, and runs the job again.
/// Returns how often the effect happened, and the report of the first worker.
async fn effects_before_a_redrive(throttled: u64, stopped_after: u64) -> (u32, Report) {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    queue.send(&task("a")).await.unwrap();
    let effects = Arc::new(AtomicU32::new(0));
    let run_for = async |seconds| {
        let (count, slow) = (Arc::clone(&effects), faulty.clone());
        let handler = move |_: Task, ctx: Context| {
            let (count, slow) = (Arc::clone(&count), slow.clone());
            async move {
                let charge = || async {
                    if count.fetch_add(1, Ordering::SeqCst) == 0 {
                        slow.plan_always(Operation::PutBlob, Fault::Throttle(Duration::from_secs(1)));
                        tokio::spawn(async move {
                            after(throttled).await;
                            slow.heal();
                        });
                    }
                    Ok::<_, JobError>(())
                };
                let recorded = timeout(Duration::from_secs(1), ctx.once("charge", charge)).await;
                recorded.unwrap_or_else(|_| Err(JobError::dead_letter("no record")))
            }
        };
        let builder = worker(&faulty.storage()).shutdown_timeout(Duration::ZERO);
        builder.handle(handler).build().unwrap().run_until(after(seconds)).await.unwrap()
    };
    let first = run_for(stopped_after).await;
    // The end is recorded in a message that is not dead-lettered yet.
    let second = run_for(600).await;
    assert_eq!(first.dead_lettered + second.dead_lettered, 1, "{first:?} {second:?}");
    let redriven = queue.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved.len(), 1);
    assert_eq!(run_for(60).await.completed, 1);
    (effects.load(Ordering::SeqCst), first)
}

// audit 25, core B2
#[tokio::test(start_paused = true)]
async fn effect_of_a_dead_letter_is_recorded_before_it_is_redriven() {
    // Longer than a lease.
    let (effects, report) = effects_before_a_redrive(120, 900).await;
    assert_eq!((effects, report.dead_lettered), (1, 1), "{report:?}");
}

// audit 25, core B2
#[tokio::test(start_paused = true)]
async fn message_waits_for_the_record_of_an_effect_before_it_is_dead_lettered() {
    let (effects, report) = effects_before_a_redrive(15, 2).await;
    assert_eq!((effects, report.released, report.abandoned), (1, 1, 0), "{report:?}");
}

/// Runs a job of three attempts whose effect returns `result`, as a step or not. Returns how often the effect
/// happened.
async fn effects_with<T>(is_step: bool, result: T) -> u32
where
    T: Clone + serde::Serialize + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let effects = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&effects);
    let handler = move |_: Task, ctx: Context| {
        let (count, result) = (Arc::clone(&count), result.clone());
        async move {
            let charge = || async {
                count.fetch_add(1, Ordering::SeqCst);
                Ok::<_, JobError>(result)
            };
            match is_step {
                true => ctx.step("charge", charge).await.map(drop),
                false => ctx.once("charge", charge).await.map(drop),
            }
        }
    };
    queue.send(&task("a")).await.unwrap();
    let report = worker(&storage).handle(handler).build().unwrap().run_until(after(600)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (0, 1), "{report:?}");
    effects.load(Ordering::SeqCst)
}

// ONCE1, ONCE2
#[tokio::test(start_paused = true)]
async fn effect_happens_once_although_json_cannot_express_its_result() {
    for is_step in [false, true] {
        assert_eq!(effects_with(is_step, HashMap::from([((1_u8, 2_u8), 3_u8)])).await, 1, "{is_step}");
        assert_eq!(effects_with(is_step, f64::NAN).await, 1, "{is_step}");
        assert_eq!(effects_with(is_step, Some(f64::NAN)).await, 1, "{is_step}");
    }
}

/// The parts of a handler's work at which its process is suspended.
#[derive(Debug, Clone, Copy)]
enum Suspended {
    WhileItLooksForTheRecord,
    BeforeTheStep,
    BeforeItAsksWhetherToStop,
}

/// Suspends a process for a minute while it runs a job, which another one then runs. Returns how often the
/// effect happened.
async fn effects_around(suspended: Suspended) -> u32 {
    let (storage, process) = (in_memory(), Process::default());
    storage.queue::<Task>().await.unwrap().send(&task("a")).await.unwrap();
    let effects = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&effects);
    let handler = move |_: Task, ctx: Context| {
        let count = Arc::clone(&count);
        async move {
            let effect = || async { Ok::<_, JobError>(count.fetch_add(1, Ordering::SeqCst)) };
            match suspended {
                Suspended::WhileItLooksForTheRecord => return ctx.once("charge", effect).await.map(drop),
                Suspended::BeforeTheStep => {
                    after(2).await;
                    ctx.step("charge", effect).await?;
                }
                Suspended::BeforeItAsksWhetherToStop => {
                    after(2).await;
                    if !ctx.is_cancelled() {
                        effect().await?;
                    }
                }
            }
            Ok(())
        }
    };
    let gated = storage.runtime().clone().with_task_gate(Arc::new(process.clone()));
    // Quiet: the process stops between the answer of the storage and what follows it, by the second.
    let slow = Faulty::quiet(&storage);
    slow.plan_always(Operation::GetBlob, Fault::DelayAfter(Duration::from_secs(2)));
    let first = worker(&slow.storage().with_runtime(gated.clone())).handle(handler.clone()).build().unwrap();
    drop(gated.spawn(first.run_until(std::future::pending())));
    after(1).await;
    process.stop();
    let second = worker(&storage).handle(handler).build().unwrap();
    assert_eq!(second.run_until(after(60)).await.unwrap().completed, 1);
    process.resume();
    after(1).await;
    effects.load(Ordering::SeqCst)
}

#[tokio::test(start_paused = true)]
async fn suspended_process_does_not_repeat_the_effect_of_its_successor() {
    for suspended in
        [Suspended::WhileItLooksForTheRecord, Suspended::BeforeTheStep, Suspended::BeforeItAsksWhetherToStop]
    {
        assert_eq!(effects_around(suspended).await, 1, "{suspended:?}");
    }
}
