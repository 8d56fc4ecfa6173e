//! Stopping: I18, F51, F112. The processes are this program, started again.

use std::time::Duration;

use jobqueue::{JobError, Storage, Worker, shutdown_signal};
use jobqueue_tests::jobs::{Task, task};
use std::process::{Child, Command, ExitStatus, Stdio};

const DATABASE: &str = "JOBQUEUE_TEST_SHUTDOWN";

/// A process with 100 jobs, one of which never ends. Does nothing unless it was started for that.
#[tokio::test(flavor = "multi_thread")]
async fn part_of_f112_a_worker() {
    let Ok(path) = std::env::var(DATABASE) else { return };
    let storage = Storage::connect(&path).await.unwrap();
    let handler = |task: Task| async move {
        println!("\n>> {}", task.name);
        if task.name == "stuck" {
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
        .build()
        .unwrap();
    let report = worker.run_until(shutdown_signal()).await.unwrap();
    std::process::exit(if report.is_clean() { 0 } else { 3 });
}

struct Fixture {
    _folder: tempfile::TempDir,
    path: String,
    queue: jobqueue::Queue<Task>,
}

impl Fixture {
    async fn new(stuck: bool) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = format!("sqlite:{}", folder.path().join("jobs.db").display());
        let queue = Storage::connect(&path).await.unwrap().queue::<Task>().await.unwrap();
        for n in 0..99 {
            let _ = queue.send(&task(n.to_string())).await.unwrap();
        }
        let _ = queue.send(&task(if stuck { "stuck" } else { "99" })).await.unwrap();
        Self { _folder: folder, path, queue }
    }

    /// Starts the worker and waits until all 100 handlers run.
    fn start(&self) -> Child {
        use std::io::{BufRead, BufReader};
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["shutdown::part_of_f112_a_worker", "--exact", "--nocapture"])
            .env(DATABASE, &self.path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let started = lines.map_while(Result::ok).filter(|line| line.contains(">> ")).take(100).count();
        assert_eq!(started, 100);
        child
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

async fn end(mut child: Child) -> ExitStatus {
    tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn i18_f112_sigterm_lets_99_finish_releases_the_stuck_one_and_tells_by_the_exit_code() {
    let fixture = Fixture::new(true).await;
    let child = fixture.start();
    signal(&child, "-TERM");
    assert_eq!(end(child).await.code(), Some(3));
    assert_eq!(fixture.queue.len().await.unwrap(), 1);
    // Visible at once, to another process too, and without a counted attempt.
    let left = fixture.queue.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!((left.message().name.as_str(), left.info().attempt), ("stuck", 1));
    left.complete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn i18_f112_sigint_with_nothing_stuck_is_a_clean_end() {
    let fixture = Fixture::new(false).await;
    let child = fixture.start();
    signal(&child, "-INT");
    assert_eq!(end(child).await.code(), Some(0));
    assert!(fixture.queue.is_empty().await.unwrap());
}

#[tokio::test(flavor = "multi_thread")]
async fn i18_f51_f112_a_second_signal_ends_at_once_and_nothing_is_lost() {
    let fixture = Fixture::new(true).await;
    let child = fixture.start();
    signal(&child, "-TERM");
    tokio::time::sleep(Duration::from_millis(300)).await;
    signal(&child, "-TERM");
    assert_eq!(end(child).await.code(), Some(130));
    // What did not finish is still there: the stuck one at least.
    assert!(fixture.queue.len().await.unwrap() >= 1);
}
