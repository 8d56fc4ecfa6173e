//! Messages that are sent in order: one of a key at a time, in the order of their sends, on every storage.

mod azurite;
mod backlog;
mod cancelled;
mod checkpoints;
mod costs;
mod disturbed;
mod ended;
mod external;
mod flow;
mod long_locks;
mod native;
mod outages;
mod outages_that_end;
mod overrun;
mod pages;
mod processes;
mod records;
mod resharded;
mod slow_logs;
mod storages;
mod stress;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::clock::TokioClock;
use jobqueue::{JobError, JobInfo, Queue, QueueMessage, State, Storage, Worker};
use jobqueue_testing::faults::Faulty;
use jobqueue_tests::jobs::{in_memory, runtime};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

/// The `number`-th job of its key, which fails this often before it succeeds.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(
    queue = "steps",
    kind = "step",
    poison_threshold = 3,
    lease = "30s",
    backoff(base = "1s", max = "5s")
)]
struct Step {
    #[message(key)]
    of: String,
    number: u32,
    fails: u32,
    millis: u64,
}

fn step(of: impl Into<String>, number: u32) -> Step {
    Step { of: of.into(), number, fails: 0, millis: 10 }
}

/// Returns a storage in memory that leaves the order to the framework, as Azure's queues do.
pub fn logged() -> Storage {
    // Quiet: it only hides that the storage could keep the order; tests add the distance and the faults that
    // they are about.
    Faulty::quiet(&in_memory()).storage()
}

/// Returns the storage as a process has it whose clock is ahead. The storage keeps its own clock.
fn with_clock_ahead(storage: &Storage, ahead: Duration) -> Storage {
    let clock = TokioClock::at(storage.runtime().now() + ahead);
    storage.clone().with_runtime(runtime().with_clock(Arc::new(clock)))
}

/// Opens the queue on a storage whose calls may fail.
async fn opened(storage: &Storage) -> Queue<Step> {
    loop {
        match storage.queue().await {
            Ok(queue) => return queue,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

/// Runs a worker until `stopped` is set; restarts it, as a supervisor does, if it cannot open its queues.
async fn keep_running(build: impl Fn() -> Worker, stopped: watch::Receiver<()>) {
    loop {
        let mut stopped = stopped.clone();
        match build().run_until(async move { drop(stopped.changed().await) }).await {
            Ok(_) => return,
            Err(error) => assert!(error.is_retryable(), "{error}"),
        }
    }
}

async fn send(queue: &Queue<Step>, step: &Step) {
    queue.send(step).in_order().await.unwrap();
}

/// The jobs of each key that handlers saw.
#[derive(Debug, Default)]
struct Seen {
    running: BTreeSet<String>,
    /// The numbers of steps in the order in which their handlers began.
    begun: BTreeMap<String, Vec<u32>>,
    /// The keys and numbers whose last attempt has ended.
    ended: BTreeSet<(String, u32)>,
    overlaps: Vec<String>,
}

#[derive(Debug, Clone, Default)]
struct Watch {
    seen: Arc<Mutex<Seen>>,
    /// A final end: done, or the last attempt.
    end: Arc<Notify>,
}

/// Records the end of the handler, in every case.
struct Running(Watch, String);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.seen.lock().unwrap().running.remove(&self.1);
    }
}

impl Watch {
    fn begin(&self, step: &Step) -> Running {
        let mut seen = self.seen.lock().unwrap();
        if !seen.running.insert(step.of.clone()) {
            seen.overlaps.push(format!("{} {}", step.of, step.number));
        }
        seen.begun.entry(step.of.clone()).or_default().push(step.number);
        Running(self.clone(), step.of.clone())
    }

    /// Records that the step is over.
    fn end(&self, step: &Step) {
        self.seen.lock().unwrap().ended.insert((step.of.clone(), step.number));
        self.end.notify_one();
    }

    async fn ends(&self, count: usize) {
        while self.seen.lock().unwrap().ended.len() < count {
            self.end.notified().await;
        }
    }

    fn begun(&self, key: &str) -> Vec<u32> {
        self.seen.lock().unwrap().begun.get(key).cloned().unwrap_or_default()
    }

    /// The runs of one step are adjacent, and steps are in the order of their sends.
    fn assert_in_order(&self, keys: u32, steps: u32) {
        (0..keys).for_each(|key| self.assert_in_order_of(&key.to_string(), steps));
    }

    fn assert_in_order_of(&self, key: &str, steps: u32) {
        let seen = self.seen.lock().unwrap();
        assert!(seen.overlaps.is_empty(), "two of a key at once: {:?}", seen.overlaps);
        let mut begun = seen.begun[key].clone();
        assert!(begun.is_sorted(), "key {key}: {begun:?}");
        begun.dedup();
        assert_eq!(begun, (0..steps).collect::<Vec<_>>(), "key {key}");
    }
}

async fn handle(step: Step, info: JobInfo, State(watch): State<Watch>) -> Result<(), JobError> {
    let _running = watch.begin(&step);
    tokio::time::sleep(Duration::from_millis(step.millis)).await;
    let last = info.attempt > step.fails || info.attempt == 3;
    if last {
        watch.end(&step);
    }
    if info.attempt <= step.fails { Err(JobError::retry("not yet")) } else { Ok(()) }
}
