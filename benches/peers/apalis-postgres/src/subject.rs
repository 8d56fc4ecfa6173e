//! apalis-postgres in the harness, with its listener for notifications.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use apalis::prelude::*;
use apalis_postgres::{Config, PostgresStorage};
use jobqueue_bench_harness::{
    About, JOB_NAME, JOB_NOTE, JOB_URL, POSTGRES_DURABILITY, Phase, Result, Seen, Subject, postgres_url,
};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The number of connections.
const CONNECTIONS: u32 = 20;
/// The period of the search for jobs of which no notification came.
const POLL: Duration = Duration::from_millis(100);
const QUEUE: &str = "thumbnails";

pub(crate) struct Apalis {
    pool: PgPool,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Thumbnail {
    number: u64,
    sent: u64,
    name: String,
    url: String,
    note: String,
}

pub(crate) struct Running {
    stop: oneshot::Sender<()>,
    worker: JoinHandle<std::result::Result<(), WorkerError>>,
}

async fn handle(job: Thumbnail, seen: Data<Arc<Seen>>) -> std::result::Result<(), BoxDynError> {
    seen.handled(job.sent).await;
    Ok(())
}

impl Apalis {
    fn storage(&self, batch: usize) -> PostgresStorage<Thumbnail> {
        PostgresStorage::new(&self.pool).with_config(Config::default().queue(QUEUE).batch_size(batch))
    }
}

impl Subject for Apalis {
    type Job = Thumbnail;
    type Worker = Running;

    fn about() -> About {
        About {
            system: "apalis-postgres".into(),
            versions: [("apalis-postgres".to_owned(), "1.0.0".to_owned())].into(),
            durability: POSTGRES_DURABILITY.into(),
            settings: format!(
                "listener and 100 ms poll, batch = concurrency, parallelize(tokio::spawn), {CONNECTIONS} connections"
            ),
        }
    }

    fn supports(phase: Phase) -> bool {
        !matches!(phase, Phase::Leases | Phase::Order)
    }

    async fn open(_: &Path) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(&postgres_url()?).await?;
        PostgresStorage::setup(&pool).await?;
        Ok(Self { pool })
    }

    fn job(number: u64, sent: u64) -> Thumbnail {
        Thumbnail { number, sent, name: JOB_NAME.into(), url: JOB_URL.into(), note: JOB_NOTE.into() }
    }

    async fn send(&self, job: &Thumbnail) -> Result<()> {
        Ok(self.storage(10).push(job.clone()).await?)
    }

    async fn send_all(&self, jobs: &[Thumbnail]) -> Result<()> {
        Ok(self.storage(10).push_bulk(jobs.to_vec()).await?)
    }

    async fn work(&self, concurrency: usize, seen: Arc<Seen>) -> Result<Running> {
        let storage = self.storage(concurrency).with_pubsub();
        let worker = WorkerBuilder::new(format!("bench-{}", std::process::id()))
            .backend(storage.poll_with_strategy(Strategy::new().interval(POLL)))
            .concurrency(concurrency)
            .parallelize(tokio::spawn)
            .data(seen)
            .build(handle);
        let (stop, stopped) = oneshot::channel();
        let stopped = async {
            // Dropping the sender stops it too.
            let _ = stopped.await;
            std::result::Result::<(), WorkerError>::Ok(())
        };
        Ok(Running { stop, worker: tokio::spawn(worker.run_until(stopped)) })
    }

    async fn stop(&self, running: Running) -> Result<()> {
        let _ = running.stop.send(());
        running.worker.await??;
        Ok(())
    }
}
