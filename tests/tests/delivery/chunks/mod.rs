//! Handlers of several jobs: the calls, the verdicts, failed jobs alone, and jobs that are stopped. In paused
//! time.

mod interruptions;
mod transactions;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::chunk::{ChunkJob, ChunkOptions};
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::worker::{HandlerLimits, QueueLimits};
use jobqueue::{Error, ErrorKind, Event, JobError, QueueMessage, Report, Storage, WorkerBuilder};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, in_memory, outcomes, task, worker};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

/// The names of the jobs of each call.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<Vec<String>>>>);

impl Calls {
    /// Notes a call, and returns the names of its jobs.
    fn note(&self, jobs: &[ChunkJob<Task>]) -> Vec<String> {
        let mut names: Vec<_> = jobs.iter().map(|job| job.message.name.clone()).collect();
        names.sort();
        self.0.lock().unwrap().push(names.clone());
        names
    }

    fn all(&self) -> Vec<Vec<String>> {
        self.0.lock().unwrap().clone()
    }

    fn sizes(&self) -> Vec<usize> {
        self.all().iter().map(Vec::len).collect()
    }
}

async fn send(storage: &Storage, names: &[&str]) {
    let queue = storage.queue::<Task>().await.unwrap();
    for name in names {
        let _ = queue.send(&task(*name)).id(*name).await.unwrap();
    }
}

/// Adds a handler that notes its calls and returns what `verdict` makes of them.
fn calling(
    storage: &Storage,
    options: impl Into<ChunkOptions>,
    verdict: impl Fn(Vec<ChunkJob<Task>>) -> Result<(), JobError> + Clone + Send + Sync + 'static,
) -> (Calls, WorkerBuilder) {
    let calls = Calls::default();
    let noted = calls.clone();
    let handler = move |jobs: Vec<ChunkJob<Task>>| {
        noted.note(&jobs);
        let verdict = verdict.clone();
        async move { verdict(jobs) }
    };
    (calls, worker(storage).handle_many(options, handler))
}

#[tokio::test(start_paused = true)]
async fn jobs_that_are_fetched_together_share_calls() {
    let storage = in_memory();
    send(&storage, &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"]).await;
    let (calls, builder) = calling(&storage, 4, |_| Ok(()));
    let report = run(builder).await;
    assert_eq!(report.completed, 10);
    assert_eq!(calls.sizes(), [4, 4, 2]);
}

#[tokio::test(start_paused = true)]
async fn a_job_waits_for_others_no_longer_than_the_linger() {
    let second = Duration::from_secs(1);
    for (options, begins, sizes) in [
        (ChunkOptions::new(10), second / 50, vec![1, 1]),
        (ChunkOptions::new(10).linger(second * 5), second * 5, vec![2]),
    ] {
        let storage = in_memory();
        send(&storage, &["a"]).await;
        let (began, waits) = (Instant::now(), Arc::<Mutex<Vec<Duration>>>::default());
        let sink = Arc::clone(&waits);
        let verdict = move |_| {
            sink.lock().unwrap().push(began.elapsed());
            Ok(())
        };
        let (calls, builder) = calling(&storage, options, verdict);
        let late = async {
            after(3).await;
            send(&storage, &["b"]).await;
            after(10).await;
        };
        let report = builder.build().unwrap().run_until(late).await.unwrap();
        assert_eq!(report.completed, 2);
        assert_eq!(calls.sizes(), sizes);
        let waited = waits.lock().unwrap()[0];
        assert!((begins..begins + second / 10).contains(&waited), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_job_has_its_own_verdict() {
    let storage = in_memory();
    send(&storage, &["completed", "dead", "other"]).await;
    let verdict = |jobs: Vec<ChunkJob<Task>>| {
        let is_shared = jobs.len() > 1;
        for job in jobs {
            match job.message.name.as_str() {
                "completed" => job.complete(),
                "dead" => job.fail(JobError::dead_letter("by its own verdict")),
                _ => {}
            }
        }
        if is_shared { Err(JobError::retry("of the call")) } else { Ok(()) }
    };
    let (calls, builder) = calling(&storage, 3, verdict);
    let (errors, listener) = errors();
    let report = builder.on_event(listener).build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered, report.retried), (2, 1, 1));
    assert_eq!(calls.all(), [vec!["completed", "dead", "other"], vec!["other"]]);
    let mut errors = errors.lock().unwrap().clone();
    errors.sort();
    assert_eq!(errors, ["dead: by its own verdict", "other: of the call"]);
}

/// Returns a log of the errors of jobs, and the listener that writes it.
fn errors() -> (Log, impl Fn(&Event) + Send + Sync + 'static) {
    let log = Log::default();
    let sink = Arc::clone(&log);
    (log, move |event: &Event| {
        if let Event::Finished { job: Some(job), error: Some(error), .. } = event {
            sink.lock().unwrap().push(format!("{}: {error}", job.id));
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_verdict_ends_its_job_before_the_function_returns() {
    let storage = in_memory();
    send(&storage, &["a", "b", "c"]).await;
    let (log, listener) = outcomes();
    let seen = Arc::clone(&log);
    let handler = move |jobs: Vec<ChunkJob<Task>>| {
        let seen = Arc::clone(&seen);
        async move {
            // The first of them has polled the call until then: another one goes on.
            for (number, job) in jobs.into_iter().enumerate() {
                assert_eq!(seen.lock().unwrap().len(), number);
                job.complete();
                after(1).await;
            }
            Ok::<_, JobError>(())
        }
    };
    let builder = worker(&storage).handle_many(3, handler).on_event(listener);
    let report = run(builder).await;
    assert_eq!(report.completed, 3);
    assert_eq!(*log.lock().unwrap(), ["completed"; 3]);
}

/// A function that does not say which of its jobs is at fault.
fn poisoned<M>(jobs: &[ChunkJob<M>], name: impl Fn(&M) -> &str) -> Result<(), JobError> {
    let is_poisoned = jobs.iter().any(|job| name(&job.message) == "poison");
    if is_poisoned { Err(JobError::dead_letter("poison")) } else { Ok(()) }
}

#[tokio::test(start_paused = true)]
async fn a_poisoned_job_fails_its_neighbours_once() {
    let storage = in_memory();
    send(&storage, &["a", "b", "poison"]).await;
    let (calls, builder) = calling(&storage, 3, |jobs| poisoned(&jobs, |task| &task.name));
    let report = builder.build().unwrap().run_until(after(60)).await.unwrap();
    assert_eq!((report.completed, report.dead_lettered, report.retried), (2, 1, 3));
    assert_eq!(calls.sizes(), [3, 1, 1, 1]);
}

/// A job that has one attempt.
#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "once", kind = "once", poison_threshold = 1)]
struct Once {
    name: String,
}

#[tokio::test(start_paused = true)]
async fn a_job_that_a_failure_would_kill_is_alone() {
    let storage = in_memory();
    let queue = storage.queue::<Once>().await.unwrap();
    let messages = ["a", "poison", "b"].map(|name| Once { name: name.to_owned() });
    let _ = queue.send_all(&messages).await.unwrap();
    let handler = |jobs: Vec<ChunkJob<Once>>| async move { poisoned(&jobs, |once| &once.name) };
    let report = run(worker(&storage).handle_many(3, handler)).await;
    assert_eq!((report.completed, report.dead_lettered), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_panic_fails_each_job_of_its_call() {
    for is_late in [false, true] {
        let storage = in_memory();
        send(&storage, &["a", "b", "c"]).await;
        let (errors, listener) = errors();
        let handler = move |jobs: Vec<ChunkJob<Task>>| {
            assert!(is_late || jobs.len() == 1, "boom");
            async move {
                after(1).await;
                assert!(jobs.len() == 1, "boom");
                Ok::<_, JobError>(())
            }
        };
        let builder = worker(&storage).handle_many(3, handler).on_event(listener);
        let report = builder.build().unwrap().run_until(after(60)).await.unwrap();
        assert_eq!((report.completed, report.retried), (3, 3));
        let mut errors = errors.lock().unwrap().clone();
        errors.sort();
        assert_eq!(errors, ["a", "b", "c"].map(|id| format!("{id}: the handler panicked: boom")));
    }
}

#[tokio::test(start_paused = true)]
async fn an_outage_that_the_function_passes_on_costs_no_attempt() {
    let faulty = Faulty::new(&in_memory());
    let storage = faulty.storage();
    send(&storage, &["a", "b"]).await;
    let calls = Calls::default();
    let noted = calls.clone();
    let handler = move |jobs: Vec<ChunkJob<Task>>| {
        noted.note(&jobs);
        async move {
            assert!(jobs.iter().all(|job| job.context.info().attempt == 1));
            jobs[0].context.checkpoint(&"p".repeat(50_000)).await?;
            Ok::<_, JobError>(())
        }
    };
    faulty.plan_always(Operation::PutBlob, Fault::Refuse(StoreErrorKind::Unavailable));
    let builder = worker(&storage).circuit_breaker(None).handle_many(2, handler);
    let healed = async {
        after(300).await;
        faulty.heal();
        after(300).await;
    };
    let report = builder.build().unwrap().run_until(healed).await.unwrap();
    assert_eq!((report.completed, report.retried), (2, 0), "{report:?}");
    assert_eq!(calls.all()[0], ["a", "b"]);
}

#[tokio::test]
async fn a_size_that_the_slots_cannot_reach_is_a_mistake() {
    let refused = |options: usize, limit: fn(WorkerBuilder) -> WorkerBuilder| -> Error {
        let (_, builder) = calling(&in_memory(), options, |_| Ok(()));
        let error = limit(builder).build().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Configuration);
        error
    };
    let error = refused(100, |builder| builder).to_string();
    assert!(error.contains("`task`") && error.contains("100") && error.contains("64"), "{error}");
    let _ = refused(0, |builder| builder);
    let _ = refused(9, |builder| builder.limit::<Task>(HandlerLimits::new().concurrency(8)));
    let _ = refused(9, |builder| builder.limit_queue("tasks", QueueLimits::new().concurrency(8)));
    // A quarter of the slots is reserved, half of it for the other queue.
    let _ = refused(64, |builder| builder.handle(|_: Once| async { Ok::<_, JobError>(()) }));
    let (_, builder) = calling(&in_memory(), 100, |_| Ok(()));
    assert!(builder.concurrency(100).build().is_ok());
}

/// Runs until all has ended.
async fn run(builder: WorkerBuilder) -> Report {
    builder.build().unwrap().run_until_idle().await.unwrap()
}
