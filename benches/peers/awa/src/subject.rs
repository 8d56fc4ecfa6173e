//! awa in the harness, with the queue that its documentation advises for throughput: one that is partitioned.
//! `send_all` copies.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use awa::model::insert::params_with;
use awa::{
    Client, InsertOpts, InsertParams, JobArgs, JobResult, PartitionedQueue, QueueConfig, QueueStorage,
    QueueStorageConfig, insert_with, migrations,
};
use jobqueue_bench_harness::{
    About, JOB_NAME, JOB_NOTE, JOB_URL, POSTGRES_DURABILITY, Phase, Result, Seen, Subject, postgres_url,
};
use serde::{Deserialize, Serialize};
use sqlx::postgres::{PgPool, PgPoolOptions};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

/// The number of connections.
const CONNECTIONS: u32 = 20;
/// The number of queues that share the jobs.
const PARTITIONS: usize = 4;
/// The time in which jobs end when a worker stops.
const DRAINING: Duration = Duration::from_secs(30);

pub(crate) struct Awa {
    pool: PgPool,
    storage: QueueStorage,
    queue: PartitionedQueue,
    next: AtomicUsize,
}

#[derive(Debug, Clone, Serialize, Deserialize, JobArgs)]
pub(crate) struct Thumbnail {
    number: u64,
    sent: u64,
    name: String,
    url: String,
    note: String,
}

impl Awa {
    /// Returns the options of the next job, whose queue takes its turn.
    fn next(&self) -> InsertOpts {
        self.queue.route_opts_by_index(InsertOpts::default(), self.next.fetch_add(1, Ordering::Relaxed))
    }
}

impl Subject for Awa {
    type Job = Thumbnail;
    type Worker = Client;

    fn about() -> About {
        About {
            system: "awa".into(),
            versions: [("awa".to_owned(), "0.6.9".to_owned())].into(),
            durability: POSTGRES_DURABILITY.into(),
            settings: format!(
                "a queue of {PARTITIONS} partitions, {CONNECTIONS} connections, copying send_all"
            ),
        }
    }

    fn supports(phase: Phase) -> bool {
        !matches!(phase, Phase::Leases | Phase::Order)
    }

    async fn open(_: &Path) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(&postgres_url()?).await?;
        // The compiler does not see that this future is `Send`.
        block_in_place(|| Handle::current().block_on(migrations::run(&pool)))?;
        let storage = QueueStorage::new(QueueStorageConfig::default())?;
        let queue = PartitionedQueue::new("thumbnails", PARTITIONS)?;
        Ok(Self { pool, storage, queue, next: AtomicUsize::new(0) })
    }

    fn job(number: u64, sent: u64) -> Thumbnail {
        Thumbnail { number, sent, name: JOB_NAME.into(), url: JOB_URL.into(), note: JOB_NOTE.into() }
    }

    async fn send(&self, job: &Thumbnail) -> Result<()> {
        insert_with(&self.pool, job, self.next()).await?;
        Ok(())
    }

    async fn send_all(&self, jobs: &[Thumbnail]) -> Result<()> {
        let jobs: std::result::Result<Vec<InsertParams>, _> =
            jobs.iter().map(|job| params_with(job, self.next())).collect();
        self.storage.enqueue_params_copy(&self.pool, &jobs?).await?;
        Ok(())
    }

    async fn work(&self, concurrency: usize, seen: Arc<Seen>) -> Result<Client> {
        let config =
            QueueConfig { max_workers: u32::try_from(concurrency / PARTITIONS)?, ..Default::default() };
        let client = Client::builder(self.pool.clone())
            .partitioned_queue(&self.queue, config)
            .register::<Thumbnail, _, _>(move |job: Thumbnail, _| {
                let seen = Arc::clone(&seen);
                async move {
                    seen.handled(job.sent).await;
                    Ok(JobResult::Completed)
                }
            })
            .build()?;
        client.start().await?;
        Ok(client)
    }

    async fn stop(&self, client: Client) -> Result<()> {
        client.shutdown(DRAINING).await;
        Ok(())
    }
}
