//! effectum in the harness, as its README shows it.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use effectum::{Job, JobRunner, Queue, RunningJob, Worker};
use jobqueue_bench_harness::{About, JOB_NAME, JOB_NOTE, JOB_URL, Phase, Result, Seen, Subject};
use serde::{Deserialize, Serialize};

use crate::durability::Durability;

const KIND: &str = "thumbnail";

pub(crate) struct Effectum {
    queue: Queue,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Thumbnail {
    number: u64,
    sent: u64,
    name: String,
    url: String,
    note: String,
}

async fn handle(job: RunningJob, seen: Arc<Seen>) -> std::result::Result<(), effectum::Error> {
    let thumbnail: Thumbnail = job.json_payload()?;
    seen.handled(thumbnail.sent).await;
    Ok(())
}

fn to_job(thumbnail: &Thumbnail) -> Result<Job> {
    Ok(Job::builder(KIND).json_payload(thumbnail)?.build())
}

impl Subject for Effectum {
    type Job = Thumbnail;
    type Worker = Worker;

    fn about() -> About {
        let versions = [("effectum", "0.7.0"), ("SQLite", rusqlite::version())];
        About {
            system: "effectum".into(),
            versions: versions.map(|(name, version)| (name.to_owned(), version.to_owned())).into(),
            durability: Durability::wanted().name().into(),
            settings: "min_concurrency = half of max_concurrency, no heartbeats".into(),
        }
    }

    fn supports(phase: Phase) -> bool {
        // A file is for one process.
        !matches!(phase, Phase::LatencyOther | Phase::Leases | Phase::Order)
    }

    async fn open(directory: &Path) -> Result<Self> {
        Ok(Self { queue: Queue::new(&directory.join("effectum.db")).await? })
    }

    fn job(number: u64, sent: u64) -> Thumbnail {
        Thumbnail { number, sent, name: JOB_NAME.into(), url: JOB_URL.into(), note: JOB_NOTE.into() }
    }

    async fn send(&self, job: &Thumbnail) -> Result<()> {
        self.queue.add_job(to_job(job)?).await?;
        Ok(())
    }

    async fn send_all(&self, jobs: &[Thumbnail]) -> Result<()> {
        self.queue.add_jobs(jobs.iter().map(to_job).collect::<Result<_>>()?).await?;
        Ok(())
    }

    async fn work(&self, concurrency: usize, seen: Arc<Seen>) -> Result<Worker> {
        let runner = JobRunner::builder(KIND, handle).build();
        let most = u16::try_from(concurrency)?;
        let worker = Worker::builder(&self.queue, seen)
            .min_concurrency(most.div_ceil(2))
            .max_concurrency(most)
            .jobs([runner]);
        Ok(worker.build().await?)
    }

    async fn stop(&self, worker: Worker) -> Result<()> {
        Ok(worker.unregister(Some(Duration::from_secs(30))).await?)
    }
}
