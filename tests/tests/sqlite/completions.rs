//! Jobs that are completed in a transaction of their handlers.

use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::FutureExt as _;
use jobqueue::clock::ManualClock;
use jobqueue::settings::SettingOverrides;
use jobqueue::sqlite::Options;
use jobqueue::{
    Context, Error, ErrorKind, Event, JobError, Queue, QueueMessage, Storage, Worker, WorkerBuilder,
};
use jobqueue_tests::children::{Part, part};
use jobqueue_tests::jobs::{Task, task};
use jobqueue_tests::running::Running;
use jobqueue_tests::say;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use rusqlite::{Connection, TransactionBehavior};
use serde::{Deserialize, Serialize};

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

    fn effects(&self) -> Vec<String> {
        effects(&self.path)
    }
}

fn effects(path: &Path) -> Vec<String> {
    let connection = Connection::open(path).unwrap();
    let mut found = connection.prepare("SELECT job FROM effect ORDER BY job").unwrap();
    found.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The end of a handler's transaction.
#[derive(Clone, Copy, PartialEq)]
enum End {
    Commit,
    Rollback,
}

/// Writes an effect and completes the job.
fn act(path: &Path, ctx: &Context, end: End) -> Result<(), Error> {
    let mut connection = Connection::open(path).unwrap();
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    transaction.execute("INSERT INTO effect VALUES (?1)", [&*ctx.info().id]).unwrap();
    ctx.complete_in(&transaction)?;
    match end {
        End::Commit => transaction.commit().unwrap(),
        End::Rollback => transaction.rollback().unwrap(),
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn job_is_done_after_the_commit_whatever_its_handler_returns() {
    let bench = Bench::new().await;
    for id in ["error", "letter", "panic"] {
        let _ = bench.queue.send(&task(id)).id(id).await.unwrap();
    }
    let path = bench.path.clone();
    let handler = move |task: Task, ctx: Context| {
        let acted = act(&path, &ctx, End::Commit);
        async move {
            acted?;
            match task.name.as_str() {
                "error" => Err(JobError::retry("too late")),
                "letter" => Err(JobError::dead_letter("too late")),
                _ => panic!("too late"),
            }
        }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, report.retried, report.dead_lettered), (3, 0, 0));
    assert_eq!(bench.effects(), ["error", "letter", "panic"]);
    assert_eq!(bench.queue.approximate_len().await.unwrap(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn job_whose_transaction_does_not_commit_runs_again() {
    let bench = Bench::new().await;
    let _ = bench.queue.send(&task("a")).id("a").await.unwrap();
    let (path, runs) = (bench.path.clone(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&runs);
    let handler = move |_: Task, ctx: Context| {
        let end = if count.fetch_add(1, Ordering::Relaxed) == 0 { End::Rollback } else { End::Commit };
        let acted = act(&path, &ctx, end);
        async move { Ok::<_, JobError>(acted?) }
    };
    let mut worker = Running::start(bench.worker().handle(handler)).await;
    let ended = worker.ended().await;
    assert_eq!(ended.name(), "retried");
    assert!(ended.error.unwrap().contains("did not commit"));
    assert_eq!(worker.ended().await.name(), "completed");
    assert_eq!((bench.effects(), worker.stop().await.completed), (vec!["a".to_owned()], 1));
}

// R9-5
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
    let _ = bench.queue.send(&task("a")).id("a").await.unwrap();
    let path = bench.path.clone();
    let handler = move |_: Task, ctx: Context| {
        let path = path.clone();
        async move {
            act(&path, &ctx, End::Rollback)?;
            ctx.checkpoint(&"between").await?;
            act(&path, &ctx, End::Commit)?;
            let again = act(&path, &ctx, End::Commit).unwrap_err();
            assert!(again.is_lease_lost(), "{again}");
            let saved = ctx.checkpoint(&"behind").await.unwrap_err();
            assert!(saved.is_lease_lost(), "{saved}");
            // That found out that the transaction has committed.
            for end in [End::Commit, End::Rollback] {
                let again = act(&path, &ctx, end).unwrap_err();
                assert!(again.is_lease_lost(), "{again}");
            }
            Ok::<_, JobError>(())
        }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, bench.effects().len()), (1, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn transaction_of_a_run_that_has_lost_its_lease_cannot_complete() {
    let clock = Arc::new(ManualClock::new());
    let bench = Bench::with(|options| options.clock(clock.clone())).await;
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
        ctx.complete_in(&transaction).unwrap();
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

// A storage hides no message beyond its time to live.
#[tokio::test(flavor = "multi_thread")]
async fn job_that_expires_before_its_lease_can_be_completed() {
    let bench = Bench::new().await;
    let _ = bench.queue.send(&task("a")).id("a").ttl(Duration::from_secs(20)).await.unwrap();
    let path = bench.path.clone();
    let handler = move |_: Task, ctx: Context| {
        let acted = act(&path, &ctx, End::Commit);
        async move { Ok::<_, JobError>(acted?) }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!((report.completed, bench.effects().len()), (1, 1));
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
        ctx.complete_in(&transaction).unwrap();
        transaction.commit().unwrap();
        // The renewal comes after the save.
        told.lock().unwrap().recv_timeout(PATIENCE).unwrap();
        let text = connection.query_row("SELECT text FROM jobqueue_message", [], |row| row.get(0)).unwrap();
        *sink.lock().unwrap() = text;
        async { Ok::<_, JobError>(()) }
    };
    let mut overrides = SettingOverrides::default();
    overrides.timeout = Some(Duration::from_secs(3));
    let worker = bench.worker().overrides(overrides).on_event(listener).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    let text = found.lock().unwrap();
    assert!(text.contains("finished") && !text.contains("old"), "{text}");
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
        assert_eq!(ctx.complete_in(&other).unwrap_err().kind(), ErrorKind::Invalid);
        let none = Connection::open(&path).unwrap();
        assert_eq!(ctx.complete_in(&none).unwrap_err().kind(), ErrorKind::Invalid);
        async { Ok::<_, JobError>(()) }
    };
    let report = bench.worker().handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn effect_that_is_recorded_in_a_committed_transaction_does_not_happen_again() {
    let bench = Bench::new().await;
    let _ = bench.queue.send(&task("a")).id("a").await.unwrap();
    let (path, runs) = (bench.path.clone(), Arc::new(AtomicU32::new(0)));
    let count = Arc::clone(&runs);
    let handler = move |_: Task, ctx: Context| {
        let run = count.fetch_add(1, Ordering::Relaxed);
        let mut connection = Connection::open(&path).unwrap();
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        // The record of the first run is rolled back; that of the second one stays.
        assert_eq!(ctx.once_in(&transaction, "fee").unwrap(), run < 2);
        if run == 0 {
            transaction.rollback().unwrap();
        } else {
            transaction.commit().unwrap();
        }
        async move { if run < 3 { Err(JobError::retry_after(Duration::ZERO, "again")) } else { Ok(()) } }
    };
    let mut overrides = SettingOverrides::default();
    overrides.poison_threshold = Some(10);
    let worker = bench.worker().overrides(overrides).handle(handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    assert_eq!(runs.load(Ordering::Relaxed), 4);
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "parent")]
struct Parent {}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "tasks", kind = "end")]
struct Report {}

// What follows from a job comes after its handler, and the transaction keeps what it needs.
#[tokio::test(flavor = "multi_thread")]
async fn batch_goes_on_after_children_that_were_completed_in_transactions() {
    let bench = Bench::new().await;
    let _ = bench.storage.queue::<Parent>().await.unwrap().send(&Parent {}).await.unwrap();
    let parent = async |_: Parent, ctx: Context| {
        let mut batch = ctx.batch("children").await?;
        batch.send_all(["a", "b"].map(task)).await?;
        Ok::<_, JobError>(batch.then(&Report {}).await?)
    };
    let path = bench.path.clone();
    let child = move |task: Task, ctx: Context| {
        let acted = ctx.set_result(&task.name).and_then(|()| act(&path, &ctx, End::Commit));
        async move { acted.map_err(JobError::from).and(Err(JobError::retry("too late"))) }
    };
    let end = async |_: Report, ctx: Context| {
        let results = ctx.batch_results::<String>().await?;
        let names: Vec<_> = results.into_iter().map(|child| child.outcome.unwrap().unwrap()).collect();
        assert_eq!(names, ["a", "b"]);
        Ok::<_, JobError>(())
    };
    let worker = bench.worker().handle(parent).handle(child).handle(end).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 4);
}
