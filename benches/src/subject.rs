//! Runs jobqueue on SQLite or, with the feature `postgres`, on PostgreSQL, through its public API.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use jobqueue::{Error, JobError, Queue, Report, State, Storage, Worker};
use jobqueue_bench_harness::{About, POSTGRES_DURABILITY, Result, Seen, Subject, postgres};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::message::Thumbnail;

/// An open storage and its queue.
pub(crate) struct Jobqueue {
    pub(crate) storage: Storage,
    pub(crate) queue: Queue<Thumbnail>,
}

/// A running worker and its stop signal.
pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    report: JoinHandle<std::result::Result<Report, Error>>,
}

impl Running {
    pub(crate) fn start(worker: Worker) -> Self {
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            // Dropping the sender stops it too.
            let _ = stopped.await;
        };
        Self { stop, report: tokio::spawn(worker.run_until(stopped)) }
    }

    pub(crate) async fn stop(self) -> Result<Report> {
        let _ = self.stop.send(());
        Ok(self.report.await??)
    }
}

pub(crate) async fn handle(
    job: Thumbnail,
    State(seen): State<Arc<Seen>>,
) -> std::result::Result<(), JobError> {
    seen.handled(job.sent).await;
    Ok(())
}

impl Subject for Jobqueue {
    type Job = Thumbnail;
    type Worker = Running;

    fn about() -> About {
        let mut versions = BTreeMap::from([("jobqueue".to_owned(), env!("CARGO_PKG_VERSION").to_owned())]);
        let durability = match postgres() {
            Some(_) => POSTGRES_DURABILITY,
            None => {
                versions.insert("SQLite".to_owned(), rusqlite::version().to_owned());
                "WAL, synchronous=FULL"
            }
        };
        About {
            system: "jobqueue".into(),
            versions,
            durability: durability.into(),
            settings: "defaults".into(),
        }
    }

    async fn open(directory: &Path) -> Result<Self> {
        let file = || format!("sqlite:{}", directory.join("jobs.db").display());
        let storage = Storage::connect(&postgres().unwrap_or_else(file)).await?;
        let queue = storage.queue().await?;
        Ok(Self { storage, queue })
    }

    fn job(number: u64, sent: u64) -> Thumbnail {
        Thumbnail::new(number, sent)
    }

    async fn send(&self, job: &Thumbnail) -> Result<()> {
        self.queue.send(job).await?;
        Ok(())
    }

    async fn send_all(&self, jobs: &[Thumbnail]) -> Result<()> {
        self.queue.send_all(jobs).await?.into_iter().try_for_each(|sent| sent.map(drop))?;
        Ok(())
    }

    async fn work(&self, concurrency: usize, seen: Arc<Seen>) -> Result<Running> {
        let worker =
            Worker::builder(self.storage.clone()).state(seen).concurrency(concurrency).handle(handle);
        Ok(Running::start(worker.build()?))
    }

    async fn stop(&self, worker: Running) -> Result<()> {
        let _ = worker.stop().await?;
        Ok(())
    }
}
