//! Jobs that are completed in a transaction of their handlers.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use jobqueue::clock::ManualClock;
use jobqueue::maintenance::{SweepOptions, sweep};
use jobqueue::settings::SettingOverrides;
use jobqueue::sqlite::Options;
use jobqueue::{Context, Error, ErrorKind, Event, JobError, Queue, Runtime, Storage, Worker, WorkerBuilder};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::completions::{self, Effects, End};
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::running::Running;
use jobqueue_tests::say;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rusqlite::{Connection, TransactionBehavior};

/// The time limit of a wait, however busy the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

struct Bench {
    _folder: tempfile::TempDir,
    path: PathBuf,
    storage: Storage,
    queue: Queue<Task>,
}

impl Bench {
    async fn new() -> Self {
        Self::with(|options| options).await
    }

    async fn with(set: impl FnOnce(Options) -> Options) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("jobs.db");
        let storage = Storage::open(set(Options::new(&path))).await.unwrap();
        let queue = storage.queue::<Task>().await.unwrap();
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE effect (job TEXT NOT NULL)").unwrap();
        Self { _folder: folder, path, storage, queue }
    }

    fn worker(&self) -> WorkerBuilder {
        Worker::builder(self.storage.clone())
    }

    fn file(&self) -> File {
        File(self.path.clone())
    }

    fn effects(&self) -> Vec<String> {
        effects(&self.path)
    }
}

fn effects(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    let mut found = connection.prepare("SELECT job FROM effect ORDER BY job").unwrap();
    found.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The file of a storage.
#[derive(Debug, Clone)]
struct File(PathBuf);

impl Effects for File {
    async fn act(&self, ctx: &Context, end: End) -> Result<(), Error> {
        act(&self.0, ctx, end)
    }

    async fn record(&self, ctx: &Context, end: End) -> bool {
        let mut connection = Connection::open(&self.0).unwrap();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let is_new = ctx.once_in_sqlite(&transaction, "fee").unwrap();
        match end {
            End::Commit => transaction.commit().unwrap(),
            End::Rollback => transaction.rollback().unwrap(),
        }
        is_new
    }

    async fn effects(&self) -> Vec<String> {
        effects(&self.0)
    }
}

/// Writes an effect and completes the job.
fn act(path: &Path, ctx: &Context, end: End) -> Result<(), Error> {
    let mut connection = Connection::open(path).unwrap();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    transaction.execute("INSERT INTO effect VALUES (?1)", [&*ctx.info().id]).unwrap();
    ctx.complete_in_sqlite(&transaction)?;
    match end {
        End::Commit => transaction.commit().unwrap(),
        End::Rollback => transaction.rollback().unwrap(),
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn job_is_done_after_the_commit_whatever_its_handler_returns() {
    let bench = Bench::new().await;
    completions::done_after_the_commit(&bench.storage, bench.file()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_whose_transaction_does_not_commit_runs_again() {
    let bench = Bench::new().await;
    completions::runs_again_after_a_rollback(&bench.storage, bench.file()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_after_a_rollback_does_not_complete_the_job() {
    let bench = Bench::new().await;
    let _ = bench.queue.send(&task("a")).id("a").await.unwrap();
    let path = bench.path.clone();
    let handler = move |_: Task, ctx: Context| {
        let path = path.clone();
        async move {
            act(&path, &ctx, End::Rollback)?;
            ctx.checkpoint(&"after").await?;
            Ok::<_, JobError>(())
        }
    };
    let mut worker = Running::start(bench.worker().handle(handler)).await;
    let ended = worker.ended().await;
    assert_eq!(ended.name(), "retried");
    assert!(ended.error.unwrap().contains("did not commit"));
    let _ = worker.stop().await;
}

// Busy databases make transactions fail, which are tried again.
#[tokio::test(flavor = "multi_thread")]
async fn transaction_can_be_tried_again_until_one_has_committed() {
    let bench = Bench::new().await;
    completions::tried_until_one_has_committed(&bench.storage, bench.file()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn job_that_expires_before_its_lease_can_be_completed() {
    let bench = Bench::new().await;
    completions::completed_before_it_expires(&bench.storage, bench.file()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn effect_that_is_recorded_in_a_committed_transaction_does_not_happen_again() {
    let bench = Bench::new().await;
    completions::recorded_effect_happens_once(&bench.storage, bench.file()).await;
}

// audit 25, core B0
#[tokio::test(flavor = "multi_thread")]
async fn effect_of_a_job_that_lives_for_weeks_does_not_happen_again() {
    let clock = Arc::new(ManualClock::new());
    let bench = Bench::with(|options| options.runtime(Runtime::new().with_clock(clock.clone()))).await;
    let _ = bench.queue.send(&task("a")).await.unwrap();
    let six_days = Duration::from_secs(6 * 86_400);
    for run in 0..8 {
        let (file, (tell, told)) = (bench.file(), std::sync::mpsc::channel());
        let handler = move |_: Task, ctx: Context| {
            let (file, tell) = (file.clone(), tell.clone());
            async move {
                tell.send(file.record(&ctx, End::Commit).await).unwrap();
                Err::<(), _>(JobError::snooze(six_days))
            }
        };
        let mut worker = Running::start(bench.worker().handle(handler)).await;
        assert_eq!(worker.ended().await.name(), "released");
        drop(worker.stop().await);
        assert_eq!(told.recv().unwrap(), run == 0, "run {run}");
        clock.advance(six_days + Duration::from_secs(60));
        let _ = sweep(&bench.storage, SweepOptions::new()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn batch_goes_on_after_children_that_were_completed_in_transactions() {
    let bench = Bench::new().await;
    completions::batch_goes_on_after_its_children(&bench.storage, bench.file()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_of_a_run_that_has_lost_its_lease_cannot_complete() {
    let clock = Arc::new(ManualClock::new());
    let bench = Bench::with(|options| options.runtime(Runtime::new().with_clock(clock.clone()))).await;
    let _ = bench.queue.send(&task("a")).id("a").await.unwrap();
    let (path, queue) = (bench.path.clone(), bench.queue.clone());
    let handler = move |_: Task, ctx: Context| {
        let (path, queue, clock) = (path.clone(), queue.clone(), clock.clone());
        async move {
            // The process was stopped for an hour, and another one has the job.
            clock.advance(Duration::from_secs(3_600));
            let successor = queue.receive(Duration::ZERO).await.unwrap().unwrap();
            let lost = act(&path, &ctx, End::Commit).unwrap_err();
            assert!(lost.is_lease_lost(), "{lost}");
            successor.complete().await.unwrap();
            Ok::<_, JobError>(())
        }
    };
    let mut worker = Running::start(bench.worker().handle(handler)).await;
    assert_eq!(worker.ended().await.name(), "lease_lost");
    assert_eq!(bench.effects(), Vec::<String>::new());
    drop(worker.stop().await);
}

// The renewal finds the lock of the transaction, and later its receipt.
#[tokio::test(flavor = "multi_thread")]
async fn lease_is_renewed_after_the_transaction() {
    let bench = Bench::with(|options| options.busy_timeout(Duration::from_millis(100))).await;
    let _ = bench.queue.send(&task("a")).id("a").await.unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let (all, told) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Mutex::new(told)));
    let log = Arc::clone(&all);
    let listener = move |event: &Event| {
        let name = match event {
            Event::Renewed { .. } => "renewed",
            Event::NotRenewed { .. } => "not renewed",
            Event::LeaseLost { .. } => "lost",
            _ => return,
        };
        log.lock().unwrap().push(name);
        let _ = tell.send(name);
    };
    let path = bench.path.clone();
    let handler = move |_: Task, ctx: Context| {
        let wait = |for_what| while told.lock().unwrap().recv_timeout(PATIENCE).unwrap() != for_what {};
        let mut connection = Connection::open(&path).unwrap();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        transaction.execute("INSERT INTO effect VALUES ('a')", []).unwrap();
        ctx.complete_in_sqlite(&transaction).unwrap();
        wait("not renewed");
        transaction.commit().unwrap();
        wait("renewed");
        assert!(!ctx.is_cancelled());
        async { Ok::<_, JobError>(()) }
    };
    let mut overrides = SettingOverrides::default();
    overrides.timeout = Some(Duration::from_secs(3));
    let worker = bench.worker().overrides(overrides).on_event(listener).handle(handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    let all = all.lock().unwrap();
    assert_eq!((report.completed, bench.effects().len()), (1, 1), "{all:?}");
    assert!(!all.contains(&"lost"), "{all:?}");
}

// The outer batch continued before the inner one.
#[tokio::test]
async fn batch_that_a_child_sends_after_its_completion_continues_it() {
    let bench = Bench::new().await;
    let mut outer = bench.storage.batch("outer").await.unwrap();
    outer.send(&task("child")).await.unwrap();
    outer.then(&task("after the outer")).await.unwrap();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let (path, log) = (bench.path.clone(), Arc::clone(&ran));
    let handler = move |task: Task, ctx: Context| {
        let path = path.clone();
        log.lock().unwrap().push(task.name.clone());
        async move {
            if task.name == "child" {
                act(&path, &ctx, End::Commit)?;
                let mut inner = ctx.batch("inner").await?;
                inner.send(&jobqueue_tests::jobs::task("grandchild")).await?;
                inner.then(&jobqueue_tests::jobs::task("after the inner")).await?;
            }
            Ok::<_, JobError>(())
        }
    };
    // One after the other, in the order of their sends.
    let worker = bench.worker().concurrency(1).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 4);
    let ran = ran.lock().unwrap();
    assert_eq!(*ran, ["child", "grandchild", "after the inner", "after the outer"]);
}

// The save waits for the lock of the transaction, and its text says nothing of the end of the job.
#[tokio::test(flavor = "multi_thread")]
async fn checkpoint_that_was_given_up_does_not_replace_what_the_transaction_has_written() {
    let bench = Bench::new().await;
    let _ = bench.queue.send(&task("a")).id("a").await.unwrap();
    let (tell, told) = std::sync::mpsc::channel();
    let (found, told) = (Arc::new(Mutex::new(String::new())), Arc::new(Mutex::new(told)));
    let sink = Arc::clone(&found);
    let listener = move |event: &Event| {
        if matches!(event, Event::Renewed { .. }) {
            let _ = tell.send(());
        }
    };
    let path = bench.path.clone();
    let handler = move |_: Task, ctx: Context| {
        let mut connection = Connection::open(&path).unwrap();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        {
            let mut saving = pin!(ctx.checkpoint(&"old"));
            assert!(saving.as_mut().now_or_never().is_none());
        }
        // The save goes on, and its request waits for the lock: nothing tells when.
        std::thread::sleep(Duration::from_millis(300));
        ctx.complete_in_sqlite(&transaction).unwrap();
        transaction.commit().unwrap();
        // The renewal comes after the save.
        told.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        let text = connection.query_row("SELECT text FROM jobqueue_message", [], |row| row.get(0)).unwrap();
        *sink.lock().unwrap() = text;
        async { Ok::<_, JobError>(()) }
    };
    let mut overrides = SettingOverrides::default();
    overrides.timeout = Some(Duration::from_secs(9));
    let worker = bench.worker().overrides(overrides).on_event(listener).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    let text = found.lock().unwrap();
    assert!(text.contains("finished"), "{text}");
}

// A part of the next test: does jobs until it is killed.
#[tokio::test(flavor = "multi_thread")]
async fn part_completes() {
    let Some(path) = part("completions::part_completes") else { return };
    let path = PathBuf::from(path);
    let storage = Storage::open(Options::new(&path)).await.unwrap();
    let handler = move |_: Task, ctx: Context| {
        let acted = act(&path, &ctx, End::Commit);
        say!("done {}.", ctx.info().id);
        async move { Ok::<_, JobError>(acted?) }
    };
    let mut overrides = SettingOverrides::default();
    overrides.timeout = Some(Duration::from_secs(1));
    let worker = Worker::builder(storage).concurrency(8).overrides(overrides).handle(handler);
    let report = worker.build().unwrap().run_until_idle().await.unwrap();
    say!("idle {}.", report.completed);
}

#[tokio::test(flavor = "multi_thread")]
async fn effect_and_end_of_a_job_are_both_there_or_neither_after_any_kill() {
    const ROUNDS: usize = 12;
    const JOBS: usize = 400;
    let mut random = StdRng::seed_from_u64(jobqueue_tests::seed());
    let bench = Bench::new().await;
    for n in 0..JOBS {
        let _ = bench.queue.send(&task("a")).id(format!("{n:04}")).await.unwrap();
    }
    for _ in 0..ROUNDS {
        let mut part = Part::start("completions::part_completes", &bench.path);
        for _ in 0..random.random_range(1..JOBS / ROUNDS) {
            drop(part.says());
        }
        drop(part.kill());
        let done = bench.effects();
        let mut once = done.clone();
        once.dedup();
        assert_eq!(done.len(), once.len(), "an effect happened twice");
    }
    // The last process that was killed had some leases.
    while bench.queue.approximate_len().await.unwrap() > 0 {
        let mut part = Part::start("completions::part_completes", &bench.path);
        while part.says().is_some_and(|words| !words.starts_with("idle")) {}
    }
    let all: Vec<_> = (0..JOBS).map(|n| format!("{n:04}")).collect();
    assert_eq!(bench.effects(), all);
}

#[tokio::test(flavor = "multi_thread")]
async fn only_a_transaction_on_the_file_of_the_queue_completes_a_job() {
    let bench = Bench::new().await;
    let _ = bench.queue.send(&task("a")).id("a").await.unwrap();
    let path = bench.path.clone();
    let handler = move |_: Task, ctx: Context| {
        let mut other = Connection::open_in_memory().unwrap();
        let other = other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        assert_eq!(ctx.complete_in_sqlite(&other).unwrap_err().kind(), ErrorKind::Invalid);
        let none = Connection::open(&path).unwrap();
        assert_eq!(ctx.complete_in_sqlite(&none).unwrap_err().kind(), ErrorKind::Invalid);
        async { Ok::<_, JobError>(()) }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
}
