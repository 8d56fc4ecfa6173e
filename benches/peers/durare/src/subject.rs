//! durare in the harness: a job is a workflow without steps on a queue, the least that it can record. Its own
//! connections use `synchronous = NORMAL`; here it gets a pool with the same settings and FULL.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use durare::{Client, DurableContext, DurableEngine, SqliteProvider, WorkflowOptions, WorkflowQueue};
use jobqueue_bench_harness::{About, JOB_NAME, JOB_NOTE, JOB_URL, Phase, Result, Seen, Subject};
use serde::{Deserialize, Serialize};
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

/// The pause between two fetches.
const POLL: Duration = Duration::from_millis(10);
const QUEUE: &str = "thumbnails";
const WORKFLOW: &str = "thumbnail";

pub(crate) struct Durare {
    provider: Arc<SqliteProvider>,
    client: Client,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Thumbnail {
    number: u64,
    sent: u64,
    name: String,
    url: String,
    note: String,
}

impl Subject for Durare {
    type Job = Thumbnail;
    type Worker = DurableEngine;

    const SLOWNESS: u64 = 40;

    fn about() -> About {
        About {
            system: "durare".into(),
            versions: [("durare".to_owned(), "0.5.0".to_owned())].into(),
            durability: "WAL, synchronous=FULL (by a pool of its own; durare's is NORMAL)".into(),
            settings: "a workflow without steps; poll 10 ms (default 1 s), as many a poll as run at once; \
                       5 connections"
                .into(),
        }
    }

    fn supports(phase: Phase) -> bool {
        // It sends one by one only: a million jobs are beyond it in the time there is.
        !matches!(phase, Phase::Depth | Phase::Memory | Phase::Leases | Phase::Order)
    }

    async fn open(directory: &Path) -> Result<Self> {
        let options = SqliteConnectOptions::new()
            .filename(directory.join("durare.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5));
        let pool = SqlitePoolOptions::new().max_connections(5).connect_with(options).await?;
        let provider = Arc::new(SqliteProvider::from_pool(pool));
        // Building an engine creates the tables.
        DurableEngine::builder(provider.clone()).build().await?;
        Ok(Self { client: Client::new(provider.clone()), provider })
    }

    fn job(number: u64, sent: u64) -> Thumbnail {
        Thumbnail { number, sent, name: JOB_NAME.into(), url: JOB_URL.into(), note: JOB_NOTE.into() }
    }

    async fn send(&self, job: &Thumbnail) -> Result<()> {
        self.client.enqueue::<_, ()>(QUEUE, WORKFLOW, job, WorkflowOptions::default()).await?;
        Ok(())
    }

    async fn send_all(&self, jobs: &[Thumbnail]) -> Result<()> {
        for job in jobs {
            self.send(job).await?;
        }
        Ok(())
    }

    async fn work(&self, concurrency: usize, seen: Arc<Seen>) -> Result<DurableEngine> {
        let mut builder = DurableEngine::builder(self.provider.clone());
        builder.register(WORKFLOW, move |_: DurableContext, job: Thumbnail| {
            let seen = Arc::clone(&seen);
            async move {
                seen.handled(job.sent).await;
                Ok(())
            }
        });
        let queue = WorkflowQueue::new(QUEUE)
            .worker_concurrency(concurrency)
            .max_tasks_per_iteration(concurrency)
            .base_polling_interval(POLL);
        builder.register_queue(queue).recover_on_launch(true);
        let engine = builder.build().await?;
        engine.launch().await?;
        Ok(engine)
    }

    async fn stop(&self, engine: DurableEngine) -> Result<()> {
        Ok(engine.shutdown(Duration::from_secs(30)).await?)
    }
}
