//! The bare loop in the harness. Up to 64 jobs at once, each is deleted separately and awaited. Above that, a
//! batch is claimed, handled and deleted together.

use std::path::Path;
use std::sync::Arc;

use jobqueue_bench_harness::{About, JOB_NAME, JOB_NOTE, JOB_URL, Phase, Result, Seen, Subject};
use serde::{Deserialize, Serialize};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::store::{Leased, Store};

/// The number of messages that are claimed at once.
const CLAIM: usize = 32;
/// The number of tasks that claim, handle and delete batches when deletes are coalesced.
const BATCHERS: usize = 4;

pub(crate) struct Bare {
    store: Store,
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

    const BEST: &'static [usize] = &[256, 1024];

    fn about() -> About {
        About {
            system: "bare loop".into(),
            versions: [("SQLite".to_owned(), rusqlite::version().to_owned())].into(),
            durability: "WAL, synchronous=FULL".into(),
            settings: "group commit; process_best deletes in batches".into(),
        }
    }

    fn supports(phase: Phase) -> bool {
        // It has nothing that would wake another process.
        !matches!(phase, Phase::LatencyOther | Phase::Leases | Phase::Order)
    }

    async fn open(directory: &Path) -> Result<Self> {
        Ok(Self { store: Store::open(&directory.join("bare.db"))? })
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
        if concurrency <= 64 {
            tasks.spawn(one_by_one(self.store.clone(), concurrency, seen));
        } else {
            for _ in 0..BATCHERS {
                tasks.spawn(in_batches(self.store.clone(), concurrency / BATCHERS, Arc::clone(&seen)));
            }
        }
        Ok(tasks)
    }

    async fn stop(&self, mut worker: Self::Worker) -> Result<()> {
        worker.shutdown().await;
        Ok(())
    }
}

async fn one_by_one(store: Store, concurrency: usize, seen: Arc<Seen>) -> Result<()> {
    let slots = Arc::new(Semaphore::new(concurrency));
    loop {
        let mut free = vec![Arc::clone(&slots).acquire_owned().await?];
        while free.len() < CLAIM
            && let Ok(slot) = Arc::clone(&slots).try_acquire_owned()
        {
            free.push(slot);
        }
        let claimed = store.claim(free.len()).await?;
        if claimed.is_empty() {
            drop(free);
            store.arrival().await;
            continue;
        }
        for (leased, slot) in claimed.into_iter().zip(free) {
            let (store, seen) = (store.clone(), Arc::clone(&seen));
            tokio::spawn(async move {
                let receipt = handle(&leased, &seen).await?;
                store.delete(vec![receipt]).await?;
                drop(slot);
                Result::Ok(())
            });
        }
    }
}

async fn in_batches(store: Store, batch: usize, seen: Arc<Seen>) -> Result<()> {
    loop {
        let claimed = store.claim(batch).await?;
        if claimed.is_empty() {
            store.arrival().await;
            continue;
        }
        let mut done = Vec::with_capacity(claimed.len());
        for leased in &claimed {
            done.push(handle(leased, &seen).await?);
        }
        store.delete(done).await?;
    }
}

async fn handle(leased: &Leased, seen: &Seen) -> Result<(i64, i64)> {
    let job: Job = serde_json::from_str(&leased.body)?;
    seen.handled(job.sent).await;
    Ok((leased.id, leased.receipt))
}
