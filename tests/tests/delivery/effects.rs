//! Effects that are recorded: a record is written for as long as the lease allows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use jobqueue::storage::Operation;
use jobqueue::{Context, JobError};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_testing::simulation::Process;
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};

/// Runs a job whose effect lasts for some seconds and is recorded while the storage throttles blobs for some seconds. Its run time ends
/// after 600 s. Returns how often the effect happened.
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

/// Runs a job of three attempts whose effect returns `result`, as a step or not. Returns how often the effect happened.
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

/// Suspends a process for a minute while it runs a job, which another one then runs. Returns how often the effect happened.
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
