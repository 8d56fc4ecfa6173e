//! The bare loop in the harness. Messages are claimed in batches; each is deleted and awaited by its handler.

use std::path::Path;
use std::sync::Arc;

use jobqueue_bench_harness::{
    About, JOB_NAME, JOB_NOTE, JOB_URL, POSTGRES_DURABILITY, Phase, Result, Seen, Subject,
};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::store::{CONNECTIONS, Leased, Store};

pub(crate) struct Bare {
    store: Arc<Store>,
}

#[derive(Serialize, Deserialize)]
pub(crate) struct Job {
    number: u64,
    sent: u64,
    name: String,
    url: String,
    note: String,
}

impl Subject for Bare {
    type Job = Job;
    type Worker = JoinSet<Result<()>>;

    fn about() -> About {
        About {
            system: "bare loop".into(),
            versions: [("tokio-postgres".to_owned(), "0.7.18".to_owned())].into(),
            durability: POSTGRES_DURABILITY.into(),
            settings: "puts and deletes that wait share a statement; two connections for each operation"
                .into(),
        }
    }

    fn supports(phase: Phase) -> bool {
        // It has nothing that would wake another process.
        !matches!(phase, Phase::LatencyOther | Phase::Leases | Phase::Order)
    }

    async fn open(_: &Path) -> Result<Self> {
        Ok(Self { store: Arc::new(Store::open().await?) })
    }

    fn job(number: u64, sent: u64) -> Job {
        Job { number, sent, name: JOB_NAME.into(), url: JOB_URL.into(), note: JOB_NOTE.into() }
    }

    async fn send(&self, job: &Job) -> Result<()> {
        self.store.put(vec![serde_json::to_string(job)?]).await
    }

    async fn send_all(&self, jobs: &[Job]) -> Result<()> {
        let bodies = jobs.iter().map(serde_json::to_string).collect::<std::result::Result<_, _>>()?;
        self.store.put(bodies).await
    }

    async fn work(&self, concurrency: usize, seen: Arc<Seen>) -> Result<Self::Worker> {
        let mut tasks = JoinSet::new();
        for connection in 0..CONNECTIONS {
            let slots = Arc::new(Semaphore::new(concurrency / CONNECTIONS));
            tasks.spawn(work(Arc::clone(&self.store), connection, slots, Arc::clone(&seen)));
        }
        Ok(tasks)
    }

    async fn stop(&self, mut worker: Self::Worker) -> Result<()> {
        worker.shutdown().await;
        Ok(())
    }
}

async fn work(store: Arc<Store>, connection: usize, slots: Arc<Semaphore>, seen: Arc<Seen>) -> Result<()> {
    loop {
        let mut free = vec![Arc::clone(&slots).acquire_owned().await?];
        while let Ok(slot) = Arc::clone(&slots).try_acquire_owned() {
            free.push(slot);
        }
        let claimed = store.claim(connection, free.len()).await?;
        if claimed.is_empty() {
            drop(free);
            store.arrival().await;
            continue;
        }
        for (leased, slot) in claimed.into_iter().zip(free) {
            let (store, seen) = (Arc::clone(&store), Arc::clone(&seen));
            tokio::spawn(async move {
                store.delete(handle(&leased, &seen).await?).await?;
                drop(slot);
                Result::Ok(())
            });
        }
    }
}

async fn handle(leased: &Leased, seen: &Seen) -> Result<(i64, i64)> {
    let job: Job = serde_json::from_str(&leased.body)?;
    seen.handled(job.sent).await;
    Ok((leased.id, leased.receipt))
}
