//! graphile_worker in the harness, with what its guide advises for throughput: a local queue and batched
//! completions. With `BENCH_RECOVERY` its recovery of jobs of dead workers, which is off by default, is on:
//! the variable is the number of seconds without a heartbeat.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, Worker, WorkerContext, WorkerOptions,
    WorkerRecoveryConfig, WorkerUtils,
};
use jobqueue_bench_harness::{
    About, JOB_NAME, JOB_NOTE, JOB_URL, POSTGRES_DURABILITY, Phase, Result, Seen, Subject, postgres_url,
};
use serde::{Deserialize, Serialize};
use tokio::task::JoinHandle;

/// The number of connections.
const CONNECTIONS: u32 = 20;
/// The number of jobs that a worker takes at once.
const LOCAL: usize = 1_000;
/// The delay in which completions are gathered.
const GATHERING: Duration = Duration::from_millis(5);

pub(crate) struct Graphile {
    utils: WorkerUtils,
}

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Thumbnail {
    number: u64,
    sent: u64,
    name: String,
    url: String,
    note: String,
}

impl TaskHandler for Thumbnail {
    const IDENTIFIER: &'static str = "thumbnail";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let seen = context.get_ext::<Arc<Seen>>().ok_or("no extension")?;
        seen.handled(self.sent).await;
        Ok::<(), String>(())
    }
}

pub(crate) struct Running {
    worker: Arc<Worker>,
    task: JoinHandle<Result<()>>,
}

fn recovery() -> Result<WorkerRecoveryConfig> {
    let recovery = WorkerRecoveryConfig::default();
    let Ok(seconds) = std::env::var("BENCH_RECOVERY") else { return Ok(recovery) };
    let interval = Duration::from_secs(5);
    Ok(recovery
        .heartbeat_interval(interval)
        .sweep_interval(interval)
        .sweep_threshold(Duration::from_secs(seconds.parse()?))
        .recovery_delay(Duration::ZERO))
}

fn options() -> Result<WorkerOptions> {
    let options = WorkerOptions::default().database_url(&postgres_url()?).max_pg_conn(CONNECTIONS);
    Ok(options.listen_os_shutdown_signals(false).define_job::<Thumbnail>())
}

impl Subject for Graphile {
    type Job = Thumbnail;
    type Worker = Running;

    fn about() -> About {
        About {
            system: "graphile_worker".into(),
            versions: [("graphile_worker".to_owned(), "0.14.1".to_owned())].into(),
            durability: POSTGRES_DURABILITY.into(),
            settings: format!(
                "local queue of {LOCAL} (default none), completions gathered for 5 ms (default not), \
                 two pools of {CONNECTIONS} connections"
            ),
        }
    }

    fn supports(phase: Phase) -> bool {
        !matches!(phase, Phase::Leases | Phase::Order)
    }

    async fn open(_: &Path) -> Result<Self> {
        // Migrates.
        Ok(Self { utils: options()?.init().await?.create_utils() })
    }

    fn job(number: u64, sent: u64) -> Thumbnail {
        Thumbnail { number, sent, name: JOB_NAME.into(), url: JOB_URL.into(), note: JOB_NOTE.into() }
    }

    async fn send(&self, job: &Thumbnail) -> Result<()> {
        self.utils.add_job(job.clone(), JobSpec::default()).await?;
        Ok(())
    }

    async fn send_all(&self, jobs: &[Thumbnail]) -> Result<()> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = jobs.iter().map(|job| (job.clone(), &spec)).collect();
        self.utils.add_jobs(&jobs).await?;
        Ok(())
    }

    async fn work(&self, concurrency: usize, seen: Arc<Seen>) -> Result<Running> {
        let options = options()?
            .concurrency(concurrency)
            .complete_job_batch_delay(GATHERING)
            .local_queue(LocalQueueConfig::default().with_size(LOCAL))
            .worker_recovery(recovery()?)
            .add_extension(seen);
        let worker = Arc::new(options.init().await?);
        let running = Arc::clone(&worker);
        Ok(Running { worker, task: tokio::spawn(async move { Ok(running.run().await?) }) })
    }

    async fn stop(&self, running: Running) -> Result<()> {
        running.worker.request_shutdown();
        running.task.await?
    }
}
