//! Stopping: I18, F51, F112. The processes are this program, started again.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::Operation;
use jobqueue::{Context, Event, JobError, Outcome, Queue, Report, Storage, Worker, shutdown_signal};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Task, after, in_memory, task, worker};
use tokio::time::Instant;

const DATABASE: &str = "JOBQUEUE_TEST_SHUTDOWN";

/// Runs a process with 100 jobs, of which those called `stuck` never end. Prints what it does. Does nothing
/// unless it was started for that.
#[tokio::test(flavor = "multi_thread")]
async fn part_of_a_stopping_worker() {
    let Ok(path) = std::env::var(DATABASE) else { return };
    let storage = Storage::connect(&path).await.unwrap();
    let handler = |task: Task| async move {
        println!("\n>> started {}", task.name);
        if task.name.starts_with("stuck") {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        Ok::<(), JobError>(())
    };
    let worker = Worker::builder(storage)
        .concurrency(100)
        .shutdown_timeout(Duration::from_secs(5))
        .cancel_grace(Duration::from_millis(100))
        .handle(handler)
        .on_event(|event| {
            if let Event::Finished { job: Some(job), outcome: Outcome::Completed, .. } = event {
                println!("\n>> completed {}", job.key.as_deref().unwrap_or_default());
            }
        })
        .build()
        .unwrap();
    let told = async {
        shutdown_signal().await;
        println!("\n>> told to stop");
    };
    let report = worker.run_until(told).await.unwrap();
    std::process::exit(if report.is_clean() { 0 } else { 3 });
}

struct Fixture {
    _folder: tempfile::TempDir,
    path: String,
    queue: Queue<Task>,
}

/// A started worker and its output.
struct Part {
    child: Child,
    said: Box<dyn Iterator<Item = String>>,
}

impl Part {
    /// Reads on until `count` lines with this beginning have arrived.
    fn says(&mut self, beginning: &str, count: usize) {
        let beginning = format!(">> {beginning}");
        let said = self.said.by_ref().filter(|line| line.contains(&beginning)).take(count).count();
        assert_eq!(said, count, "{beginning}");
    }
}

impl Fixture {
    async fn new(stuck: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = format!("sqlite:{}", folder.path().join("jobs.db").display());
        let queue = Storage::connect(&path).await.unwrap().queue::<Task>().await.unwrap();
        for n in 0..100 {
            let name = if n < stuck { format!("stuck {n}") } else { n.to_string() };
            let _ = queue.send(&task(name)).await.unwrap();
        }
        Self { _folder: folder, path, queue }
    }

    /// Starts the worker and waits until all 100 handlers run.
    fn start(&self) -> Part {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["invariants::shutdown::part_of_a_stopping_worker", "--exact", "--nocapture"])
            .env(DATABASE, &self.path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut part = Part { child, said: Box::new(lines.map_while(Result::ok)) };
        part.says("started", 100);
        part
    }
}

fn signal(part: &Part, name: &str) {
    let status = Command::new("kill").args([name, &part.child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

/// Returns the exit status. The part's output is read meanwhile, so that no full pipe blocks it.
async fn end(part: Part) -> ExitStatus {
    let Part { mut child, said } = part;
    said.for_each(drop);
    tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap()
}

// I18, F112
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_finishes_99_and_releases_the_stuck_one() {
    let fixture = Fixture::new(1).await;
    let part = fixture.start();
    signal(&part, "-TERM");
    assert_eq!(end(part).await.code(), Some(3));
    assert_eq!(fixture.queue.approximate_len().await.unwrap(), 1);
    // Visible at once, to another process too, and without a counted attempt.
    let left = fixture.queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(left.message().name.as_str(), "stuck 0");
    assert_eq!(left.info().attempt, 1);
    left.complete().await.unwrap();
}

// I18, F112
#[tokio::test(flavor = "multi_thread")]
async fn sigint_with_nothing_stuck_exits_cleanly() {
    let fixture = Fixture::new(0).await;
    let part = fixture.start();
    signal(&part, "-INT");
    assert_eq!(end(part).await.code(), Some(0));
    assert!(fixture.queue.is_empty().await.unwrap());
}

// I18, F51, F112
#[tokio::test(flavor = "multi_thread")]
async fn second_signal_exits_at_once_and_loses_nothing() {
    const STUCK: usize = 50;
    let fixture = Fixture::new(STUCK).await;
    let mut part = fixture.start();
    part.says("completed", 100 - STUCK);
    signal(&part, "-TERM");
    // Two signals at once would be one.
    part.says("told to stop", 1);
    signal(&part, "-TERM");
    assert_eq!(end(part).await.code(), Some(130));
    assert_eq!(fixture.queue.approximate_len().await.unwrap(), STUCK as u64, "neither lost nor done");
}

/// Stops a worker after five seconds while the deletions of seven messages meet `fault`, and one handler runs
/// whose message cannot be released.
async fn dropped_by_shutdown(faulty: Faulty, fault: Fault) -> Report {
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    for name in ["1", "2", "3", "4", "5", "6", "7", "stuck"] {
        let _ = queue.send(&task(name)).await.unwrap();
    }
    for operation in [Operation::Delete, Operation::DeleteAll] {
        faulty.plan_always(operation, fault);
    }
    // The worker waits a little for its record.
    for operation in [Operation::Update, Operation::DeleteBlob] {
        faulty.plan_always(operation, Fault::Hang);
    }
    let handler = async |task: Task| {
        if task.name == "stuck" {
            std::future::pending::<()>().await;
        }
        Ok::<_, JobError>(())
    };
    let second = Duration::from_secs(1);
    let built = worker(&storage).presence(second).shutdown_timeout(second).handle(handler).build().unwrap();
    built.run_until(after(5)).await.unwrap()
}

// Their handlers have ended, but their messages will be delivered again: a task may hold many of them.
// round 29, core 3: the one whose handler was cancelled was counted as cancelled too.
#[tokio::test(start_paused = true)]
async fn shutdown_that_drops_deliveries_counts_each_and_is_not_clean() {
    for faulty in [Faulty::new(&in_memory()), Faulty::deleting_one_by_one(&in_memory())] {
        let report = dropped_by_shutdown(faulty, Fault::Hang).await;
        assert_eq!((report.completed, report.abandoned), (0, 8), "{report:?}");
        assert_eq!(report.cancelled, 0, "{report:?}");
        assert!(!report.is_clean());
    }
}

// The answers come while the worker ends, after the grace: a delivery counts once.
#[tokio::test(start_paused = true)]
async fn delivery_that_ends_after_the_grace_counts_once() {
    let late = Fault::DelayBefore(Duration::from_secs(12));
    let report = dropped_by_shutdown(Faulty::deleting_one_by_one(&in_memory()), late).await;
    assert_eq!((report.completed, report.abandoned), (0, 8), "{report:?}");
}

// The text with its error has room only if the payload moves to a blob, which hangs.
#[tokio::test(start_paused = true)]
async fn attempt_that_fails_before_a_shutdown_is_counted_while_blobs_hang() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&Task { name: "a".into(), data: "x".repeat(60_000) }).await.unwrap();
    faulty.plan_always(Operation::PutBlob, Fault::Hang);
    let attempts = Arc::<Mutex<Vec<u32>>>::default();
    let run_for = async |seconds| {
        let attempts = Arc::clone(&attempts);
        let handler = move |_: Task, ctx: Context| {
            attempts.lock().unwrap().push(ctx.info().attempt);
            async { Err::<(), _>(JobError::retry("𝕏".repeat(2_000))) }
        };
        let builder = worker(&faulty.storage()).shutdown_timeout(Duration::ZERO);
        builder.handle(handler).build().unwrap().run_until(after(seconds)).await.unwrap()
    };
    let report = run_for(1).await;
    assert_eq!((report.retried, report.abandoned), (1, 0), "{report:?}");
    faulty.heal();
    let _ = run_for(60).await;
    assert_eq!(attempts.lock().unwrap()[..2], [1, 2]);
}

/// Stops a worker after five seconds while its only delivery waits for a blob, before its handler. Checks that
/// the worker soon releases the message, which another worker can have at once.
async fn assert_released_although_no_blob_comes(faulty: &Faulty) {
    faulty.plan_always(Operation::GetBlob, Fault::Hang);
    let began = Instant::now();
    let handler = async |_: Task| Ok::<_, JobError>(());
    let built = worker(&faulty.storage()).handle(handler).build().unwrap();
    let report = built.run_until(after(5)).await.unwrap();
    let took = began.elapsed();
    assert_eq!((report.released, report.abandoned), (1, 0), "{report:?}");
    assert!(took < Duration::from_secs(15), "{took:?}");
    faulty.heal();
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    assert!(queue.receive(Duration::ZERO).await.unwrap().is_some(), "it is visible");
}

// round 31, deliveries 1: the shutdown waited for its timeout and its grace, and abandoned the message.
#[tokio::test(start_paused = true)]
async fn message_whose_payload_does_not_come_is_released_at_the_stop() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&Task { name: "a".into(), data: "x".repeat(100_000) }).await.unwrap();
    assert_released_although_no_blob_comes(&faulty).await;
}

// round 31, deliveries 1
#[tokio::test(start_paused = true)]
async fn message_whose_checkpoint_does_not_come_is_released_at_the_stop() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    let delivery = queue.receive(Duration::ZERO).await.unwrap().unwrap();
    delivery.checkpoint(&"p".repeat(50_000)).await.unwrap();
    delivery.release(Duration::ZERO).await.unwrap();
    assert_released_although_no_blob_comes(&faulty).await;
}

// round 31, deliveries 1
#[tokio::test(start_paused = true)]
async fn message_in_order_whose_log_does_not_answer_is_released_at_the_stop() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).in_order().await.unwrap();
    assert_released_although_no_blob_comes(&faulty).await;
}
