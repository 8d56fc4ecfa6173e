//! Celery with kombu's transport for Azure Storage queues on the same Azurite, beside jobqueue with the same
//! number of handlers.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use jobqueue_bench_harness::{Figures, JOB_NAME, JOB_NOTE, JOB_URL, Result, Unit, progress};
use jobqueue_test_support::azurite::{Azurite, KEY};
use jobqueue_test_support::python::{self, NoEnvironment};
use jobqueue_test_support::target_folder;
use tokio::process::Command;

use crate::job::Size;
use crate::load;
use crate::proxy::Log;
use crate::system::Kind;

/// The number of threads of the worker.
const THREADS: usize = 16;
/// The time limit of a worker for all jobs.
const PATIENCE: Duration = Duration::from_secs(180);

pub(crate) async fn celery(azurite: &Azurite, quick: bool) -> Result<Figures> {
    let mut figures = Figures::default();
    let python = match python::environment("celery", &folder().join("requirements.txt")) {
        Ok(python) => python,
        Err(NoEnvironment::Unreachable(why)) => {
            progress(&format!("Celery is not measured: the Python package index cannot be reached: {why}"));
            return Ok(figures);
        }
        Err(error) => return Err(error.into()),
    };
    let jobs: u64 = if quick { 20 } else { 600 };

    let run = Run::new(&python, azurite.queue_endpoint(), jobs);
    let (began, ended) = run.send().await?;
    figures.rate("celery.send_short", jobs, Duration::from_nanos(ended - began));
    let (first, last) = run.process().await?;
    figures.rate("celery.process_16", jobs - 1, Duration::from_nanos(last - first));

    // A second run through the proxy, whose delay must not affect the times above.
    let log = Log::default();
    let run = Run::new(&python, &log.before(azurite.queue_endpoint()).await?, jobs);
    let (began, ended) = run.send().await?;
    let sent = log.take().iter().filter(|seen| (began..=ended).contains(&seen.nanos)).count();
    let (first, last) = run.process().await?;
    let processed = log.take().iter().filter(|seen| (first..=last).contains(&seen.nanos)).count();
    let each = sent as f64 / jobs as f64 + processed as f64 / (jobs - 1) as f64;
    figures.put("celery.requests_short", each, Unit::Count);

    let (_, process) =
        load::timed(&load::direct(azurite), Kind::Jobqueue, Size::Short, jobs, THREADS).await?;
    figures.rate("jobqueue.process_16", jobs, process);
    Ok(figures)
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("celery")
}

/// A queue of its own, and the file to which the worker writes its report.
struct Run<'a> {
    python: &'a Path,
    environment: Vec<(&'static str, String)>,
    told: PathBuf,
}

impl<'a> Run<'a> {
    fn new(python: &'a Path, endpoint: &str, jobs: u64) -> Self {
        let queue = format!("celery-{}", uuid::Uuid::new_v4().simple());
        let told = target_folder().join("celery").join(&queue);
        let environment = vec![
            ("BENCH_BROKER", format!("azurestoragequeues://{KEY}@{endpoint}")),
            ("BENCH_QUEUE", queue),
            ("BENCH_JOBS", jobs.to_string()),
            ("BENCH_TOLD", told.display().to_string()),
            ("BENCH_NAME", JOB_NAME.into()),
            ("BENCH_URL", JOB_URL.into()),
            ("BENCH_NOTE", JOB_NOTE.into()),
        ];
        Self { python, environment, told }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.python);
        command
            .current_dir(folder())
            .envs(self.environment.iter().cloned())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command.kill_on_drop(true);
        command
    }

    /// Sends all jobs from 16 threads. Returns when that began and ended.
    async fn send(&self) -> Result<(u64, u64)> {
        let output = self.command().arg("send.py").stderr(Stdio::inherit()).output().await?;
        times(&String::from_utf8(output.stdout)?).ok_or_else(|| "Celery did not send".into())
    }

    /// Runs one worker until it has handled all jobs. Returns when the first and the last were handled.
    async fn process(&self) -> Result<(u64, u64)> {
        let log = std::fs::File::create(self.told.with_extension("log"))?;
        let mut worker = self
            .command()
            .args(["-m", "celery", "--app", "tasks", "worker", "--pool", "threads", "--loglevel", "WARNING"])
            .args([
                "--concurrency",
                &THREADS.to_string(),
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ])
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        let started = Instant::now();
        let told = loop {
            if let Some(told) = std::fs::read_to_string(&self.told).ok().as_deref().and_then(times) {
                break told;
            }
            if let Some(ended) = worker.try_wait()? {
                return Err(format!("Celery's worker ended: {ended}; see {}.log", self.told.display()).into());
            }
            if started.elapsed() > PATIENCE {
                return Err(format!("Celery's worker takes too long; see {}.log", self.told.display()).into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        worker.kill().await?;
        std::fs::remove_file(&self.told)?;
        std::fs::remove_file(self.told.with_extension("log"))?;
        Ok(told)
    }
}

/// Parses two times in nanoseconds since 1970.
fn times(text: &str) -> Option<(u64, u64)> {
    let mut words = text.split_ascii_whitespace();
    let (first, last) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    text.ends_with('\n').then_some((first, last))
}
