//! duroxide in the harness: a job is an orchestration that schedules one activity, since an orchestration
//! itself must do nothing that has an effect.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use duroxide::providers::sqlite::SqliteProvider;
use duroxide::runtime::registry::ActivityRegistry;
use duroxide::runtime::{Runtime, RuntimeOptions};
use duroxide::{ActivityContext, Client, OrchestrationContext, OrchestrationRegistry};
use jobqueue_bench_harness::{About, JOB_NAME, JOB_NOTE, JOB_URL, Phase, Result, Seen, Subject, nanos_now};
use serde::{Deserialize, Serialize};

const ORCHESTRATION: &str = "thumbnails";
const ACTIVITY: &str = "thumbnail";
/// The number of orchestrations whose turns are taken at once.
const ORCHESTRATIONS: usize = 4;
/// The answer of `PRAGMA synchronous` for FULL.
const FULL: i64 = 2;

pub(crate) struct Duroxide {
    store: Arc<SqliteProvider>,
    client: Client,
    /// Instances need names of their own.
    opened: u64,
    sent: AtomicU64,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Thumbnail {
    number: u64,
    sent: u64,
    name: String,
    url: String,
    note: String,
}

/// Makes all connections that the pool may have sync each commit. duroxide asks for `synchronous = WAL`,
/// which SQLite takes for NORMAL, and has no setting for it. A pool replaces a connection after ten minutes
/// at the earliest.
async fn sync_each_commit(store: &SqliteProvider) -> Result<()> {
    let pool = store.get_pool();
    let mut connections = Vec::new();
    for _ in 0..pool.options().get_max_connections() {
        let mut connection = pool.acquire().await?;
        sqlx::query("PRAGMA synchronous = FULL").execute(&mut *connection).await?;
        let set: i64 = sqlx::query_scalar("PRAGMA synchronous").fetch_one(&mut *connection).await?;
        if set != FULL {
            return Err(format!("synchronous is {set}").into());
        }
        connections.push(connection);
    }
    Ok(())
}

impl Subject for Duroxide {
    type Job = Thumbnail;
    type Worker = Arc<Runtime>;

    const SLOWNESS: u64 = 100;
    const BEST: &'static [usize] = &[8];

    fn about() -> About {
        About {
            system: "duroxide".into(),
            versions: [("duroxide".to_owned(), "0.1.32".to_owned())].into(),
            durability: "WAL, synchronous=FULL (set from outside; as shipped NORMAL)".into(),
            settings: format!(
                "an orchestration with one activity; {ORCHESTRATIONS} turns at once (default 2)"
            ),
        }
    }

    fn supports(phase: Phase) -> bool {
        // It sends one by one only: a million jobs are beyond it in the time there is.
        !matches!(phase, Phase::Depth | Phase::Memory | Phase::Leases | Phase::Order)
    }

    async fn open(directory: &Path) -> Result<Self> {
        let url = format!("sqlite:{}?mode=rwc", directory.join("duroxide.db").display());
        let store = Arc::new(SqliteProvider::new(&url, None).await?);
        sync_each_commit(&store).await?;
        let client = Client::new(store.clone());
        Ok(Self { store, client, opened: nanos_now(), sent: AtomicU64::new(0) })
    }

    fn job(number: u64, sent: u64) -> Thumbnail {
        Thumbnail { number, sent, name: JOB_NAME.into(), url: JOB_URL.into(), note: JOB_NOTE.into() }
    }

    async fn send(&self, job: &Thumbnail) -> Result<()> {
        let instance = format!("{}-{}", self.opened, self.sent.fetch_add(1, Ordering::Relaxed));
        self.client.start_orchestration(instance, ORCHESTRATION, serde_json::to_string(job)?).await?;
        Ok(())
    }

    async fn send_all(&self, jobs: &[Thumbnail]) -> Result<()> {
        for job in jobs {
            self.send(job).await?;
        }
        Ok(())
    }

    async fn work(&self, concurrency: usize, seen: Arc<Seen>) -> Result<Arc<Runtime>> {
        let activity = move |_: ActivityContext, input: String| {
            let seen = Arc::clone(&seen);
            async move {
                let job: Thumbnail = serde_json::from_str(&input).map_err(|error| error.to_string())?;
                seen.handled(job.sent).await;
                Ok(String::new())
            }
        };
        let orchestration = |context: OrchestrationContext, input: String| async move {
            context.schedule_activity(ACTIVITY, input).await
        };
        let options = RuntimeOptions {
            worker_concurrency: concurrency,
            orchestration_concurrency: ORCHESTRATIONS,
            ..RuntimeOptions::default()
        };
        let activities = ActivityRegistry::builder().register(ACTIVITY, activity).build();
        let orchestrations = OrchestrationRegistry::builder().register(ORCHESTRATION, orchestration).build();
        Ok(Runtime::start_with_options(self.store.clone(), activities, orchestrations, options).await)
    }

    async fn stop(&self, runtime: Arc<Runtime>) -> Result<()> {
        runtime.shutdown(Some(30_000)).await;
        Ok(())
    }
}
