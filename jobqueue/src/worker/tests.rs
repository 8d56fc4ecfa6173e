//! Hooks that fail temporarily, permanently, or slowly.

#![allow(clippy::unwrap_used)] // A helper that fails fails its test.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{Context, Report, WorkerBuilder};
use crate::dead_letters::DeadLetter;
use crate::delivery::{AdmissionContext, Hook, HookAnswer, HookContext, JobEnd};
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

/// A hook whose first calls of one kind fail, and which records the calls that succeed.
#[derive(Debug)]
struct FailingHook {
    call: HookCall,
    retryable: bool,
    /// The number of calls that have failed.
    failures: AtomicU32,
    /// The number of calls that fail.
    failing_calls: u32,
    succeeded: Mutex<Vec<String>>,
}

impl FailingHook {
    fn at(&self, call: HookCall, text: String) -> Result<(), Error> {
        if call == self.call && self.failures.load(Ordering::Relaxed) < self.failing_calls {
            self.failures.fetch_add(1, Ordering::Relaxed);
            return Err(
                Error::new(ErrorKind::Storage, "the record is damaged").with_retryable(self.retryable)
            );
        }
        self.succeeded.lock().unwrap().push(text);
        Ok(())
    }
}

#[async_trait]
impl Hook for FailingHook {
    fn applies_to(&self, _: &JobInfo) -> bool {
        true
    }

    async fn admit(&self, _: HookContext<'_>, _: AdmissionContext<'_>) -> Result<HookAnswer, Error> {
        self.at(HookCall::Admit, "admit".to_owned()).map(|()| HookAnswer::Run)
    }

    async fn ending(&self, _: HookContext<'_>, end: JobEnd<'_>) -> Result<(), Error> {
        match end {
            JobEnd::Completed { result, .. } => {
                self.at(HookCall::Completing, format!("completing {}", result.map_or("", RawValue::get)))
            }
            JobEnd::Discarded => Ok(()),
            JobEnd::Failed(rejection) => {
                self.at(HookCall::DeadLettering, format!("dead-lettering {}", rejection.reason))
            }
        }
    }
}

fn failing(call: HookCall, retryable: bool, failing_calls: u32) -> Arc<FailingHook> {
    let (failures, succeeded) = (AtomicU32::new(0), Mutex::default());
    Arc::new(FailingHook { call, retryable, failures, failing_calls, succeeded })
}

// The attempts before the handler finished do not count, even if the limit has become smaller since.
#[tokio::test(start_paused = true)]
async fn job_with_finished_handler_is_not_dead_lettered_for_attempts() {
    let storage: Storage = memory::open_on(Runtime::paused());
    let queue = storage.queue::<Part>().await.unwrap();
    let _ = queue.send(&Part {}).await.unwrap();
    let runs: Arc<AtomicU32> = Arc::default();
    let run_for = async |minutes: u64, hook: Arc<FailingHook>| {
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
    assert_eq!(report.retried, 1);
    assert_eq!(report.completed, 0);
    let one_attempt = Metadata::new().with("poisonthreshold", "1");
    storage.queues().set_queue_metadata(queue.name(), &one_attempt).await.unwrap();
    // Longer than the put-back of the message.
    let report = run_for(60, failing(HookCall::Completing, true, 0)).await;
    assert_eq!(report.completed, 1);
    assert_eq!(report.dead_lettered, 0);
    assert_eq!(runs.load(Ordering::Relaxed), 2);
}

/// Runs a worker with one job for `hours`. Returns the number of handler runs, the report, and the dead
/// letters.
async fn run(hook: &Arc<FailingHook>, fails: bool, hours: u64) -> (u32, Report, Vec<DeadLetter>) {
    run_for_minutes(&[hook], fails, 60 * hours).await
}

async fn run_for_minutes(
    hooks: &[&Arc<FailingHook>],
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
    let hooks = hooks.iter().map(|hook| Arc::<FailingHook>::clone(hook) as Arc<dyn Hook>).collect();
    let worker = WorkerBuilder::new(storage, hooks, &[]).handle(handler).build().unwrap();
    let report = worker.run_until(tokio::time::sleep(Duration::from_secs(minutes * 60))).await.unwrap();
    let letters = queue.dead_letters().unwrap().list().await.unwrap().letters;
    assert_eq!(queue.approximate_len().await.unwrap() + letters.len() as u64 + report.completed, 1);
    (runs.load(Ordering::Relaxed), report, letters)
}

#[tokio::test(start_paused = true)]
async fn permanent_hook_failure_dead_letters_the_job_with_the_error() {
    for (call, runs) in [(HookCall::Admit, 0), (HookCall::Completing, 1)] {
        let (ran, report, letters) = run(&failing(call, false, u32::MAX), false, 3).await;
        assert_eq!(ran, runs, "{call:?}");
        assert_eq!(report.retried, 0, "{call:?}");
        assert!(report.released < 60, "the job backs off: {report:?}");
        assert_eq!(letters[0].reason, "coordination_failed", "{call:?}");
        assert!(letters[0].error.as_deref().is_some_and(|error| error.contains("the record is damaged")));
    }
    // The job's own reason is kept.
    let (ran, report, letters) = run(&failing(HookCall::DeadLettering, false, u32::MAX), true, 3).await;
    assert_eq!(ran, 3);
    assert_eq!(letters[0].reason, "attempts_exhausted");
    assert_eq!(letters[0].attempts, 3);
    assert!(report.released < 60, "{report:?}");
}

/// As if a record that all hooks of the job read were damaged.
#[tokio::test(start_paused = true)]
async fn hooks_that_fail_before_and_after_a_run_share_one_hour() {
    let hooks = [HookCall::Admit, HookCall::DeadLettering].map(|call| failing(call, false, u32::MAX));
    let (ran, _, letters) = run_for_minutes(&[&hooks[0], &hooks[1]], false, 80).await;
    assert_eq!(ran, 0);
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].reason, "coordination_failed");
}

#[tokio::test(start_paused = true)]
async fn hook_with_a_retryable_error_is_called_until_it_succeeds() {
    for (call, fails, runs) in
        [(HookCall::Admit, false, 1), (HookCall::Completing, false, 1), (HookCall::DeadLettering, true, 3)]
    {
        let hook = failing(call, true, 100);
        let (ran, report, letters) = run(&hook, fails, 12).await;
        assert_eq!(ran, runs, "{call:?}");
        assert_eq!(hook.failures.load(Ordering::Relaxed), 100, "{call:?}");
        assert_eq!(report.completed, u64::from(!fails), "{call:?}");
        assert_eq!(letters.len(), usize::from(fails), "{call:?}");
        let succeeded = hook.succeeded.lock().unwrap().clone();
        let expected = if fails { "dead-lettering attempts_exhausted" } else { "completing 7" };
        assert_eq!(succeeded.last().map(String::as_str), Some(expected), "{call:?}");
    }
}

// The deferral for the first hook once lasted until the second hook was called two hours later, so that the
// finished job became a dead letter.
#[tokio::test(start_paused = true)]
async fn failure_of_a_hook_before_the_run_shortens_no_wait_after_it() {
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
    assert_eq!(report.completed, 1, "{report:?}");
    assert_eq!(report.dead_lettered, 0, "{report:?}");
}

// The hook reports an error as not retryable, and then succeeds all the same.
#[tokio::test(start_paused = true)]
async fn hook_that_recovers_from_a_permanent_error_costs_nothing() {
    for call in [HookCall::Admit, HookCall::Completing] {
        let (ran, report, letters) = run(&failing(call, false, 5), false, 3).await;
        assert_eq!(ran, 1, "{call:?}");
        assert_eq!(report.completed, 1, "{call:?}");
        assert_eq!(letters.len(), 0, "{call:?}");
    }
}

/// A hook whose first call for the end of each job is slow.
#[derive(Debug)]
struct SlowAtFirst {
    scenario: SlowHook,
    calls: AtomicU32,
}

#[async_trait]
impl Hook for SlowAtFirst {
    fn applies_to(&self, _: &JobInfo) -> bool {
        true
    }

    async fn ending(&self, _: HookContext<'_>, end: JobEnd<'_>) -> Result<(), Error> {
        let is_completed = matches!(end, JobEnd::Completed { .. });
        if !is_completed || self.calls.fetch_add(1, Ordering::Relaxed) >= self.scenario.jobs {
            return Ok(());
        }
        tokio::time::sleep(self.scenario.call_time).await;
        let failed = || Error::new(ErrorKind::Storage, "no answer").with_retryable(true);
        if self.scenario.succeeds { Ok(()) } else { Err(failed()) }
    }

    async fn admit(&self, _: HookContext<'_>, _: AdmissionContext<'_>) -> Result<HookAnswer, Error> {
        Ok(HookAnswer::Run)
    }
}

/// A scenario: jobs whose hook is slow in the first call for each job, and a worker that runs one job at a
/// time.
#[derive(Debug, Clone, Copy)]
struct SlowHook {
    jobs: u32,
    /// The run time of a handler.
    run_time: Duration,
    /// The size of a handler's result in bytes.
    result: usize,
    /// The time of a slow call.
    call_time: Duration,
    /// True if a slow call succeeds.
    succeeds: bool,
    /// The time after which the first worker is stopped.
    stopped_after: Duration,
}

impl SlowHook {
    fn of_one_job(run_time: Duration, call_time: Duration, stopped_after: Duration) -> Self {
        Self { jobs: 1, run_time, result: 1, call_time, succeeds: false, stopped_after }
    }

    /// Runs the jobs to their ends. Their maximum run time is 30 seconds, like their lease. Returns the
    /// number of handler runs, and the report of the first worker.
    async fn run(self) -> (u32, Report) {
        let storage: Storage = memory::open_on(Runtime::paused());
        for _ in 0..self.jobs {
            storage.queue::<Part>().await.unwrap().send(&Part {}).await.unwrap();
        }
        let hook = Arc::new(SlowAtFirst { scenario: self, calls: AtomicU32::new(0) });
        let runs: Arc<AtomicU32> = Arc::default();
        let run_for = async |time: Duration| {
            let runs = Arc::clone(&runs);
            let handler = move |_: Part, ctx: Context| {
                runs.fetch_add(1, Ordering::Relaxed);
                async move {
                    tokio::time::sleep(self.run_time).await;
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
/// The size of a result that does not fit into the message.
const TOO_LARGE_TO_KEEP: usize = 20_000;

#[tokio::test(start_paused = true)]
async fn shutdown_during_a_call_of_a_hook_keeps_that_the_handler_has_finished() {
    let (runs, report) = SlowHook::of_one_job(Duration::ZERO, HOUR, Duration::from_secs(1)).run().await;
    assert_eq!(runs, 1);
    assert_eq!(report.released, 1, "{report:?}");
    assert_eq!(report.abandoned, 0, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn call_of_a_hook_without_an_answer_is_given_up_after_a_minute() {
    let (runs, report) = SlowHook::of_one_job(Duration::ZERO, HOUR, Duration::from_secs(120)).run().await;
    assert_eq!(runs, 1);
    assert_eq!(report.released, 1, "{report:?}");
    assert_eq!(report.completed, 1, "{report:?}");
}

#[tokio::test(start_paused = true)]
async fn lease_is_renewed_during_the_first_call_of_a_hook_beyond_the_run_time() {
    let (run_time, call_time) = (Duration::from_millis(29_500), Duration::from_secs(50));
    let (runs, _) = SlowHook::of_one_job(run_time, call_time, Duration::from_secs(300)).run().await;
    assert_eq!(runs, 1);
}

/// The result is too large to be kept with the message.
#[tokio::test(start_paused = true)]
async fn call_of_a_hook_that_is_answered_soon_before_a_shutdown_ends_counts() {
    // Calls are cut two seconds of grace and another second after the stop.
    let (run_time, call_time) = (Duration::from_millis(2_900), Duration::from_millis(1_200));
    let scenario = SlowHook::of_one_job(run_time, call_time, Duration::from_secs(1));
    let (runs, report) = SlowHook { succeeds: true, result: TOO_LARGE_TO_KEEP, ..scenario }.run().await;
    assert_eq!(runs, 1, "{report:?}");
    assert_eq!(report.completed, 1, "{report:?}");
}

/// While the first delivery settles outside its slot, the second delivery has no place to do so.
#[tokio::test(start_paused = true)]
async fn call_of_a_hook_holds_a_slot_for_long_only_for_a_result_that_cannot_be_kept() {
    for (result, released) in [(1, 1), (TOO_LARGE_TO_KEEP, 0)] {
        let scenario =
            SlowHook::of_one_job(Duration::ZERO, Duration::from_secs(20), Duration::from_secs(300));
        let (runs, report) = SlowHook { jobs: 2, result, ..scenario }.run().await;
        assert_eq!(runs, 2, "{result}: {report:?}");
        assert_eq!(report.released, released, "{result}: {report:?}");
    }
}
