//! Hooks that fail for a while, and hooks that fail for good.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Context, Report, WorkerBuilder};
use crate::dead_letters::DeadLetter;
use crate::delivery::{AdmissionContext, Disposition, Hook, HookContext};
use crate::error::{Error, ErrorKind};
use crate::job::JobInfo;
use crate::job::outcome::JobError;
use crate::memory;
use crate::runtime::Runtime;
use crate::storage::{Metadata, Storage};

#[derive(Serialize, Deserialize, crate::QueueMessage)]
#[message(crate = "crate", queue = "parts", kind = "part", poison_threshold = 3)]
struct Part {}

/// The call in which a hook fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HookCall {
    Admit,
    Completing,
    DeadLettering,
}

/// A hook that fails in one call until `succeed` is set, and records its calls.
#[derive(Debug)]
struct Failing {
    call: HookCall,
    retryable: bool,
    failures: AtomicU32,
    mended_after: u32,
    told: Mutex<Vec<String>>,
}

impl Failing {
    fn at(&self, call: HookCall, text: String) -> Result<(), Error> {
        if call == self.call && self.failures.load(Ordering::Relaxed) < self.mended_after {
            self.failures.fetch_add(1, Ordering::Relaxed);
            return Err(
                Error::new(ErrorKind::Storage, "the record is damaged").with_retryable(self.retryable)
            );
        }
        self.told.lock().unwrap().push(text);
        Ok(())
    }
}

#[async_trait]
impl Hook for Failing {
    fn applies_to(&self, _: &JobInfo) -> bool {
        true
    }

    async fn admit(&self, _: HookContext<'_>, _: AdmissionContext<'_>) -> Result<Option<Disposition>, Error> {
        self.at(HookCall::Admit, "admit".to_owned()).map(|()| None)
    }

    async fn completing(&self, _: HookContext<'_>, result: Option<&RawValue>, _: bool) -> Result<(), Error> {
        self.at(HookCall::Completing, format!("completing {}", result.map_or("", RawValue::get)))
    }

    async fn dead_lettering(&self, _: HookContext<'_>, reason: &str, _: &str) -> Result<(), Error> {
        self.at(HookCall::DeadLettering, format!("dead-lettering {reason}"))
    }
}

fn failing(call: HookCall, retryable: bool, mended_after: u32) -> Arc<Failing> {
    let (failures, told) = (AtomicU32::new(0), Mutex::default());
    Arc::new(Failing { call, retryable, failures, mended_after, told })
}

// The attempts before it became done do not count, whatever the limit is by then.
#[tokio::test(start_paused = true)]
async fn a_job_whose_handler_has_finished_is_not_dead_lettered_for_its_attempts() {
    let storage: Storage = memory::open_on(Runtime::paused());
    let queue = storage.queue::<Part>().await.unwrap();
    let _ = queue.send(&Part {}).await.unwrap();
    let runs: Arc<AtomicU32> = Arc::default();
    let run_for = async |minutes: u64, hook: Arc<Failing>| {
        let runs = Arc::clone(&runs);
        let handler = move |_: Part| {
            let is_first = runs.fetch_add(1, Ordering::Relaxed) == 0;
            async move { if is_first { Err(JobError::retry("once")) } else { Ok(()) } }
        };
        let builder = WorkerBuilder::new(storage.clone(), vec![hook as Arc<dyn Hook>], &[]);
        let worker = builder.handle(handler).build().unwrap();
        worker.run_until(tokio::time::sleep(Duration::from_secs(minutes * 60))).await.unwrap()
    };
    let report = run_for(1, failing(HookCall::Completing, true, u32::MAX)).await;
    assert_eq!((report.retried, report.completed), (1, 0));
    let one_attempt = Metadata::new().with("poisonthreshold", "1");
    storage.queues().set_queue_metadata(queue.name(), &one_attempt).await.unwrap();
    // Longer than the message has been put back for.
    let report = run_for(60, failing(HookCall::Completing, true, 0)).await;
    assert_eq!((report.completed, report.dead_lettered), (1, 0));
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

/// Runs one job for some hours. Returns the number of handler runs, the report, and the dead letters.
async fn run(hook: &Arc<Failing>, fails: bool, hours: u64) -> (u32, Report, Vec<DeadLetter>) {
    run_for_minutes(&[hook], fails, 60 * hours).await
}

async fn run_for_minutes(
    hooks: &[&Arc<Failing>],
    fails: bool,
    minutes: u64,
) -> (u32, Report, Vec<DeadLetter>) {
    let storage: Storage = memory::open_on(Runtime::paused());
    let queue = storage.queue::<Part>().await.unwrap();
    let _ = queue.send(&Part {}).await.unwrap();
    let runs: Arc<AtomicU32> = Arc::default();
    let counted = Arc::clone(&runs);
    let handler = move |_: Part, ctx: Context| {
        counted.fetch_add(1, Ordering::Relaxed);
        async move {
            ctx.set_result(&7)?;
            if fails { Err(JobError::retry("always")) } else { Ok(()) }
        }
    };
    let hooks = hooks.iter().map(|hook| Arc::<Failing>::clone(hook) as Arc<dyn Hook>).collect();
    let worker = WorkerBuilder::new(storage, hooks, &[]).handle(handler).build().unwrap();
    let report = worker.run_until(tokio::time::sleep(Duration::from_secs(minutes * 60))).await.unwrap();
    let letters = queue.dead_letters().unwrap().list().await.unwrap();
    assert_eq!(queue.approximate_len().await.unwrap() + letters.len() as u64 + report.completed, 1);
    (runs.load(Ordering::Relaxed), report, letters)
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_fails_for_good_ends_in_a_dead_letter_that_says_why() {
    for (call, runs) in [(HookCall::Admit, 0), (HookCall::Completing, 1)] {
        let (ran, report, letters) = run(&failing(call, false, u32::MAX), false, 3).await;
        assert_eq!((ran, report.retried), (runs, 0), "{call:?}");
        assert!(report.released < 60, "it backs off: {report:?}");
        assert_eq!(letters[0].reason, "coordination_failed", "{call:?}");
        assert!(letters[0].error.as_deref().is_some_and(|error| error.contains("the record is damaged")));
    }
    // The job's own reason is kept.
    let (ran, report, letters) = run(&failing(HookCall::DeadLettering, false, u32::MAX), true, 3).await;
    assert_eq!((ran, letters[0].reason.as_str(), letters[0].attempts), (3, "attempts_exhausted", 3));
    assert!(report.released < 60, "{report:?}");
}

/// The record that all hooks of the job read is damaged.
#[tokio::test(start_paused = true)]
async fn hooks_that_fail_before_and_after_a_run_have_one_hour_together() {
    let hooks = [HookCall::Admit, HookCall::DeadLettering].map(|call| failing(call, false, u32::MAX));
    let (ran, _, letters) = run_for_minutes(&[&hooks[0], &hooks[1]], false, 80).await;
    assert_eq!((ran, letters.len()), (0, 1));
    assert_eq!(letters[0].reason, "coordination_failed");
}

#[tokio::test(start_paused = true)]
async fn a_hook_that_may_succeed_later_is_asked_for_as_long_as_it_takes() {
    for (call, fails, runs) in
        [(HookCall::Admit, false, 1), (HookCall::Completing, false, 1), (HookCall::DeadLettering, true, 3)]
    {
        let hook = failing(call, true, 100);
        let (ran, report, letters) = run(&hook, fails, 12).await;
        assert_eq!((ran, hook.failures.load(Ordering::Relaxed)), (runs, 100), "{call:?}");
        assert_eq!((report.completed, letters.len()), if fails { (0, 1) } else { (1, 0) }, "{call:?}");
        let told = hook.told.lock().unwrap().clone();
        let expected = if fails { "dead-lettering attempts_exhausted" } else { "completing 7" };
        assert_eq!(told.last().map(String::as_str), Some(expected), "{call:?}");
    }
}

// The wait for the first hook lasted until the second was called, two hours later: the job was done, and became a dead letter.
#[tokio::test(start_paused = true)]
async fn a_hook_that_was_wrong_before_the_run_shortens_no_wait_after_it() {
    let storage: Storage = memory::open_on(Runtime::paused());
    storage.queue::<Part>().await.unwrap().send(&Part {}).await.unwrap();
    let hooks = [failing(HookCall::Admit, false, 1), failing(HookCall::Completing, false, 3)];
    let hooks = hooks.map(|hook| hook as Arc<dyn Hook>).to_vec();
    let handler = async |_: Part| {
        tokio::time::sleep(Duration::from_secs(2 * 3_600)).await;
        Ok::<(), JobError>(())
    };
    let worker = WorkerBuilder::new(storage, hooks, &[]).handle(handler).build().unwrap();
    let report = worker.run_until(tokio::time::sleep(Duration::from_secs(3 * 3_600))).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered), (1, 0), "{report:?}");
}

// An error that cannot be helped by time, once.
#[tokio::test(start_paused = true)]
async fn a_hook_that_was_wrong_about_itself_costs_nothing() {
    for call in [HookCall::Admit, HookCall::Completing] {
        let (ran, report, letters) = run(&failing(call, false, 5), false, 3).await;
        assert_eq!((ran, report.completed, letters.len()), (1, 1, 0), "{call:?}");
    }
}

/// A hook whose first calls at the end of a job take long.
#[derive(Debug)]
struct SlowAtFirst {
    scene: SlowHook,
    calls: AtomicU32,
}

#[async_trait]
impl Hook for SlowAtFirst {
    fn applies_to(&self, _: &JobInfo) -> bool {
        true
    }

    async fn completing(&self, _: HookContext<'_>, _: Option<&RawValue>, _: bool) -> Result<(), Error> {
        if self.calls.fetch_add(1, Ordering::Relaxed) >= self.scene.jobs {
            return Ok(());
        }
        tokio::time::sleep(self.scene.takes).await;
        let failed = || Error::new(ErrorKind::Storage, "no answer").with_retryable(true);
        if self.scene.succeeds { Ok(()) } else { Err(failed()) }
    }

    async fn admit(&self, _: HookContext<'_>, _: AdmissionContext<'_>) -> Result<Option<Disposition>, Error> {
        Ok(None)
    }

    async fn dead_lettering(&self, _: HookContext<'_>, _: &str, _: &str) -> Result<(), Error> {
        Ok(())
    }
}

/// Jobs with a hook that is slow at the first call for each, and the worker that runs them one after the other until it stops.
#[derive(Debug, Clone, Copy)]
struct SlowHook {
    jobs: u32,
    /// The run time of a handler.
    lasts: Duration,
    /// The bytes of its result.
    result: usize,
    /// The time that a slow call takes, and whether it succeeds then.
    takes: Duration,
    succeeds: bool,
    stopped_after: Duration,
}

impl SlowHook {
    fn of_one_job(lasts: Duration, takes: Duration, stopped_after: Duration) -> Self {
        Self { jobs: 1, lasts, result: 1, takes, succeeds: false, stopped_after }
    }

    /// Runs the jobs to their ends, whose run time is 30 seconds, as a lease. Returns the number of handler runs, and the report of the first
    /// worker.
    async fn run(self) -> (u32, Report) {
        let storage: Storage = memory::open_on(Runtime::paused());
        for _ in 0..self.jobs {
            storage.queue::<Part>().await.unwrap().send(&Part {}).await.unwrap();
        }
        let hook = Arc::new(SlowAtFirst { scene: self, calls: AtomicU32::new(0) });
        let runs: Arc<AtomicU32> = Arc::default();
        let run_for = async |time: Duration| {
            let runs = Arc::clone(&runs);
            let handler = move |_: Part, ctx: Context| {
                runs.fetch_add(1, Ordering::Relaxed);
                async move {
                    tokio::time::sleep(self.lasts).await;
                    ctx.set_result(&"r".repeat(self.result))?;
                    Ok::<(), JobError>(())
                }
            };
            let hooks = vec![Arc::clone(&hook) as Arc<dyn Hook>];
            let builder =
                WorkerBuilder::new(storage.clone(), hooks, &[]).max_run_time(Duration::from_secs(30));
            let builder = builder.concurrency(1).shutdown_timeout(Duration::ZERO);
            let worker = builder.handle(handler).build().unwrap();
            worker.run_until(tokio::time::sleep(time)).await.unwrap()
        };
        let first = run_for(self.stopped_after).await;
        let rest = run_for(Duration::from_secs(600)).await;
        assert_eq!(first.completed + rest.completed, u64::from(self.jobs), "{first:?} {rest:?}");
        (runs.load(Ordering::Relaxed), first)
    }
}

const HOUR: Duration = Duration::from_secs(3_600);

// audit 24, core B4
#[tokio::test(start_paused = true)]
async fn shutdown_during_a_call_of_a_hook_keeps_that_the_handler_has_finished() {
    let (runs, report) = SlowHook::of_one_job(Duration::ZERO, HOUR, Duration::from_secs(1)).run().await;
    assert_eq!(runs, 1);
    assert_eq!((report.released, report.abandoned), (1, 0), "{report:?}");
}

// audit 24, core B4
#[tokio::test(start_paused = true)]
async fn call_of_a_hook_without_an_answer_is_given_up_after_a_minute() {
    let (runs, report) = SlowHook::of_one_job(Duration::ZERO, HOUR, Duration::from_secs(120)).run().await;
    assert_eq!(runs, 1);
    assert_eq!((report.released, report.completed), (1, 1), "{report:?}");
}

// audit 24, core C1
#[tokio::test(start_paused = true)]
async fn lease_is_renewed_during_the_first_call_of_a_hook_beyond_the_run_time() {
    let (lasts, takes) = (Duration::from_millis(29_500), Duration::from_secs(50));
    assert_eq!(SlowHook::of_one_job(lasts, takes, Duration::from_secs(300)).run().await.0, 1);
}

/// The result is too large to be kept with the message.
#[tokio::test(start_paused = true)]
async fn call_of_a_hook_that_is_answered_soon_before_a_shutdown_ends_counts() {
    // Two seconds of grace after the stop, and a second: then calls are cut.
    let (lasts, takes) = (Duration::from_millis(2_900), Duration::from_millis(1_200));
    let scene = SlowHook::of_one_job(lasts, takes, Duration::from_secs(1));
    let (runs, report) = SlowHook { succeeds: true, result: 20_000, ..scene }.run().await;
    assert_eq!((runs, report.completed), (1, 1), "{report:?}");
}

/// While the first delivery settles beside its slot, the second has no place for that.
#[tokio::test(start_paused = true)]
async fn call_of_a_hook_holds_a_slot_for_long_only_for_a_result_that_cannot_be_kept() {
    for (result, released) in [(1, 1), (20_000, 0)] {
        let scene = SlowHook::of_one_job(Duration::ZERO, Duration::from_secs(20), Duration::from_secs(300));
        let (runs, report) = SlowHook { jobs: 2, result, ..scene }.run().await;
        assert_eq!((runs, report.released), (2, released), "{result}: {report:?}");
    }
}
