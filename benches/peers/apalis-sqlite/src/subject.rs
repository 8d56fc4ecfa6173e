//! apalis-sqlite in the harness. `SqliteStorage::setup` turns syncs off on the one pooled connection that
//! runs it; here it runs on a pool of its own, so that all connections that send and work keep SQLite's
//! default, FULL.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use apalis::prelude::*;
use apalis_sqlite::callback::HookCallbackListener;
use apalis_sqlite::{Config, SqlitePool, SqliteStorage};
use futures_util::StreamExt;
use jobqueue_bench_harness::{About, JOB_NAME, JOB_NOTE, JOB_URL, Phase, Result, Seen, Subject};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The period of the search for jobs that the hook did not report.
const POLL: Duration = Duration::from_millis(100);
const QUEUE: &str = "thumbnails";

pub(crate) struct Apalis {
    pool: SqlitePool,
    listener: Mutex<Option<HookCallbackListener>>,
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
    fn storage(&self, batch: usize) -> SqliteStorage<Thumbnail> {
        let config = Config::default().queue(QUEUE).batch_size(batch);
        SqliteStorage::new(&self.pool).with_config(config)
    }
}

impl Subject for Apalis {
    type Job = Thumbnail;
    type Worker = Running;

    const SLOWNESS: u64 = 40;
    const BEST: &'static [usize] = &[256];

    fn about() -> About {
        About {
            system: "apalis-sqlite".into(),
            versions: [("apalis-sqlite".to_owned(), "1.0.0".to_owned())].into(),
            durability: "WAL, synchronous=FULL".into(),
            settings: "hook and 100 ms poll, batch = concurrency (at most 100), parallelize(tokio::spawn)"
                .into(),
        }
    }

    fn supports(phase: Phase) -> bool {
        // A million jobs are beyond it in the time there is.
        !matches!(phase, Phase::Depth | Phase::Memory | Phase::LatencyOther | Phase::Leases | Phase::Order)
    }

    async fn open(directory: &Path) -> Result<Self> {
        let url = format!("sqlite:{}?mode=rwc", directory.join("apalis.db").display());
        let setup = SqlitePool::connect(&url).await?;
        SqliteStorage::setup(&setup).await?;
        setup.close().await;
        let (pool, listener) = SqliteStorage::connect_with_callback(&url)?;
        Ok(Self { pool, listener: Mutex::new(Some(listener)) })
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
        let batch = concurrency.min(100);
        let listener = self.listener.lock().map_err(|_| "poisoned")?.take().ok_or("one worker a store")?;
        let strategy = Strategy::new().stream(listener.ready_chunks(batch)).interval(POLL);
        let worker = WorkerBuilder::new(format!("bench-{}", std::process::id()))
            .backend(self.storage(batch).poll_with_strategy(strategy))
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
