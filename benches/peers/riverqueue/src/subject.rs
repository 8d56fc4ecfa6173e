//! River in the harness, as its README shows it, with the quickest fetching that it allows.
//! `BENCH_RESCUE_AFTER` is the number of seconds after which a job counts as stuck, instead of River's
//! default of an hour.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jobqueue_bench_harness::{
    About, JOB_NAME, JOB_NOTE, JOB_URL, POSTGRES_DURABILITY, Phase, Result, Seen, Subject, postgres,
};
use riverqueue::migrate::{PostgresMigrator, SqliteMigrator};
use riverqueue::sqlx::postgres::{PgPool, PgPoolOptions};
use riverqueue::sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use riverqueue::{
    BoxError, Client, ClientBuilder, FETCH_COOLDOWN_MIN, Job, JobArgs, MaintenanceConfig, QUEUE_DEFAULT,
    QueueConfig, RunHandle, WorkContext, WorkOutcome, Workers,
};
use serde::{Deserialize, Serialize};

/// The number of connections to PostgreSQL.
const CONNECTIONS: u32 = 20;
/// The period of the search for jobs of which no notification came.
const POLL: Duration = Duration::from_millis(10);

pub(crate) struct River {
    pool: Pool,
    client: Client,
}

enum Pool {
    Sqlite(SqlitePool),
    Postgres(PgPool),
}

impl Pool {
    async fn open(directory: &Path) -> Result<Self> {
        if let Some(url) = postgres() {
            let pool = PgPoolOptions::new().max_connections(CONNECTIONS).connect(&url).await?;
            PostgresMigrator::new(pool.clone()).migrate_up().await?;
            return Ok(Self::Postgres(pool));
        }
        let options = SqliteConnectOptions::new()
            .filename(directory.join("river.db"))
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(Duration::from_secs(5));
        let pool = SqlitePoolOptions::new().max_connections(10).connect_with(options).await?;
        SqliteMigrator::new(pool.clone()).migrate_up().await?;
        Ok(Self::Sqlite(pool))
    }

    fn client(&self) -> ClientBuilder {
        let builder = match self {
            Self::Sqlite(pool) => Client::builder(pool),
            Self::Postgres(pool) => Client::builder(pool),
        };
        builder.fetch_cooldown(FETCH_COOLDOWN_MIN)
    }
}

#[derive(Debug, Clone, Serialize, Deserialize, JobArgs)]
#[river(kind = "thumbnail")]
pub(crate) struct Thumbnail {
    number: u64,
    sent: u64,
    name: String,
    url: String,
    note: String,
}

fn maintenance() -> Result<MaintenanceConfig> {
    let maintenance = MaintenanceConfig::default();
    Ok(match std::env::var("BENCH_RESCUE_AFTER") {
        Ok(seconds) => maintenance.with_rescue_after(Duration::from_secs(seconds.parse()?)),
        Err(_) => maintenance,
    })
}

impl Subject for River {
    type Job = Thumbnail;
    type Worker = RunHandle;

    const SLOWNESS: u64 = 20;

    fn about() -> About {
        let (durability, connections) = match postgres() {
            Some(_) => (POSTGRES_DURABILITY, CONNECTIONS),
            None => ("WAL, synchronous=FULL", 10),
        };
        About {
            system: "riverqueue".into(),
            versions: [("riverqueue".to_owned(), "0.5.0".to_owned())].into(),
            durability: durability.into(),
            settings: format!(
                "fetch cooldown 1 ms (default 100), poll 10 ms (default 1 s), {connections} connections"
            ),
        }
    }

    fn supports(phase: Phase) -> bool {
        !matches!(phase, Phase::Leases | Phase::Order)
    }

    async fn open(directory: &Path) -> Result<Self> {
        let pool = Pool::open(directory).await?;
        let client = pool.client().build()?;
        Ok(Self { pool, client })
    }

    fn job(number: u64, sent: u64) -> Thumbnail {
        Thumbnail { number, sent, name: JOB_NAME.into(), url: JOB_URL.into(), note: JOB_NOTE.into() }
    }

    async fn send(&self, job: &Thumbnail) -> Result<()> {
        self.client.insert(job.clone()).await?;
        Ok(())
    }

    async fn send_all(&self, jobs: &[Thumbnail]) -> Result<()> {
        self.client.insert_many(jobs.to_vec()).await?;
        Ok(())
    }

    async fn work(&self, concurrency: usize, seen: Arc<Seen>) -> Result<RunHandle> {
        let mut workers = Workers::new();
        workers.add_fn(move |_: WorkContext, job: Job<Thumbnail>| {
            let seen = Arc::clone(&seen);
            async move {
                seen.handled(job.args.sent).await;
                Ok::<_, BoxError>(WorkOutcome::Complete)
            }
        })?;
        let queue = QueueConfig::new(concurrency).with_fetch_poll_interval(POLL);
        let client = self.pool.client().workers(workers).queue(QUEUE_DEFAULT, queue);
        let client = client.maintenance(maintenance()?).build()?;
        let mut running = client.start()?;
        running.wait_ready().await?;
        Ok(running)
    }

    async fn stop(&self, mut running: RunHandle) -> Result<()> {
        Ok(running.stop().await?)
    }
}
