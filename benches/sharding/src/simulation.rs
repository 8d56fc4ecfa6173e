//! One run: producers and workers at full load for some virtual seconds.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use jobqueue::memory::{self, TokioClock};
use jobqueue::sharded::Sharded;
use jobqueue::{JobError, Queue, QueueMessage, Runtime, Storage, Worker};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::limited::{Counts, Limited, Limits};

/// The job.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "work", kind = "work", lease = "60s")]
struct Work {
    number: u64,
}

/// The setting of a simulation.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setting {
    /// The number of shards of the queue.
    pub shards: u32,
    /// The number of accounts for the shards.
    pub accounts: u32,
    /// The load, as a part of what the limits allow at best.
    pub load: f64,
    /// The rate of the first shard, if it differs from the others.
    pub slow: Option<f64>,
    /// The virtual seconds of the measurement, after a quarter of them to warm up.
    pub seconds: u64,
    /// The seed of the latencies.
    pub seed: u64,
}

/// The outcome of a simulation.
#[derive(Debug, Clone)]
pub(crate) struct Outcome {
    /// The completed jobs per second.
    pub throughput: f64,
    /// The requests per job, of all accounts.
    pub requests: f64,
    /// The percentage of refused requests.
    pub refused: f64,
    /// The completed jobs per second, by physical queue.
    pub by_queue: BTreeMap<String, f64>,
}

impl Setting {
    /// Returns the jobs per second that the limits allow at best: each message is put, got and deleted, and 32 are
    /// got at once.
    pub(crate) fn ideal(&self) -> f64 {
        let limits = Limits::default();
        let queues = f64::from(self.shards) * limits.queue / 3.0;
        // Shards are dealt in turn; an account without one serves nothing.
        let accounts = f64::from(self.accounts.min(self.shards)) * limits.account / (2.0 + 1.0 / 32.0);
        queues.min(accounts)
    }

    /// Runs the simulation on paused time.
    ///
    /// # Errors
    /// An error of the storage other than throttling.
    pub(crate) fn run(&self) -> Result<Outcome, jobqueue::Error> {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().map_err(|e| {
            jobqueue::Error::new(jobqueue::ErrorKind::Configuration, "no runtime").with_source(e)
        })?;
        runtime.block_on(self.simulate())
    }

    async fn simulate(&self) -> Result<Outcome, jobqueue::Error> {
        let clock = Arc::new(TokioClock::new());
        let slow = self.slow.map(|rate| ("work-s0v1".to_owned(), rate));
        let accounts = (0..self.accounts).map(|number| {
            let plain = memory::open_on(Runtime::new().with_clock(clock.clone()));
            let limits = Limits { slow: slow.clone().filter(|_| number == 0), ..Limits::default() };
            let limited = Limited::new(&plain, limits, self.seed * 1000 + u64::from(number));
            (limited, plain)
        });
        let accounts: Vec<_> = accounts.collect();
        // Opened like in another process: with its own connections and its own knowledge of the shards.
        let open = || -> Result<Storage, jobqueue::Error> {
            let mut builder = Sharded::builder().shards("work", self.shards);
            for (number, (limited, plain)) in accounts.iter().enumerate() {
                let blobs = Arc::clone(plain.blobs());
                let account = Storage::new(Arc::clone(limited) as Arc<_>, blobs, "simulated")
                    .with_runtime(plain.runtime().clone());
                builder = builder.account(format!("a{number}"), account);
            }
            Ok(Storage::from(builder.build()?.stores()))
        };
        let stop = CancellationToken::new();
        let processes = (self.ideal() / 2_000.0).ceil() as u64;
        let mut tasks = Vec::new();
        for _ in 0..processes {
            let storage = open()?.with_runtime(Runtime::virtual_time(clock.clone()));
            let worker = Worker::builder(storage).concurrency(256).handle(work).build()?;
            let stop = stop.clone();
            tasks.push(tokio::spawn(async move { drop(worker.run_until(stop.cancelled_owned()).await) }));
        }
        let number = Arc::new(AtomicU64::new(0));
        let period = Duration::from_secs_f64((processes * PRODUCERS) as f64 / (self.ideal() * self.load));
        for process in 0..processes {
            let queue = open()?.queue::<Work>().await?;
            for producer in 0..PRODUCERS {
                let place = (process * PRODUCERS + producer) as f64 / (processes * PRODUCERS) as f64;
                let mut tick = tokio::time::interval_at(Instant::now() + period.mul_f64(place), period);
                tick.set_missed_tick_behavior(MissedTickBehavior::Burst);
                let producing = produce(queue.clone(), tick, stop.clone(), Arc::clone(&number));
                tasks.push(tokio::spawn(producing));
            }
        }
        let counts = || accounts.iter().map(|(limited, _)| limited.counts()).collect::<Vec<_>>();
        tokio::time::sleep(Duration::from_secs(self.seconds) / 4).await;
        let before = counts();
        tokio::time::sleep(Duration::from_secs(self.seconds)).await;
        let after = counts();
        stop.cancel();
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        Ok(self.outcome(&before, &after))
    }

    fn outcome(&self, before: &[Counts], after: &[Counts]) -> Outcome {
        let sum = |counts: &[Counts], of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>() as f64;
        let grown = |of: fn(&Counts) -> u64| sum(after, of) - sum(before, of);
        let (requests, refused) = (grown(|c| c.requests), grown(|c| c.refused));
        let deleted = grown(|c| c.deleted.values().sum());
        let seconds = self.seconds as f64;
        let mut by_queue = BTreeMap::new();
        for (before, after) in before.iter().zip(after) {
            for (queue, count) in &after.deleted {
                let count = count - before.deleted.get(queue).copied().unwrap_or_default();
                *by_queue.entry(queue.clone()).or_default() += count as f64 / seconds;
            }
        }
        Outcome {
            throughput: deleted / seconds,
            requests: requests / deleted.max(1.0),
            refused: 100.0 * refused / (requests + refused).max(1.0),
            by_queue,
        }
    }
}

/// The number of producers in a process.
const PRODUCERS: u64 = 64;

async fn work(_: Work) -> Result<(), JobError> {
    tokio::time::sleep(Duration::from_millis(5)).await;
    Ok(())
}

/// Sends a job at each tick.
async fn produce(queue: Queue<Work>, mut tick: Interval, stop: CancellationToken, number: Arc<AtomicU64>) {
    while !stop.is_cancelled() {
        tick.tick().await;
        let work = Work { number: number.fetch_add(1, Ordering::Relaxed) };
        // A job that was refused to the end is not sent.
        drop(queue.send(&work).await);
    }
}
