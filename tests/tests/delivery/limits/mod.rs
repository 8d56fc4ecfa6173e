//! Limits of one worker: shares of its slots, concurrency by queue and by handler, rates and snoozes. In
//! paused time.

mod mixed;
mod payloads;
mod queues;
mod rates;
mod snoozes;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::{Context, JobError, Queue, QueueMessage, State, Storage};
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
const DAY: Duration = Duration::from_secs(86_400);

/// A job of the queue "slow" that takes this number of seconds.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "slow", kind = "slow", poison_threshold = 3, lease = "30s")]
struct Slow {
    seconds: u64,
}

/// A job of the queue "quick" that takes this number of seconds.
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "quick", kind = "quick", poison_threshold = 3, lease = "30s")]
struct Quick {
    seconds: u64,
}

/// A job of another kind in the queue "slow".
#[derive(Debug, Serialize, Deserialize, QueueMessage)]
#[message(queue = "slow", kind = "other", poison_threshold = 3, lease = "30s")]
struct Other {
    seconds: u64,
}

/// A run of a handler.
#[derive(Debug, Clone)]
struct Ran {
    kind: String,
    key: Option<String>,
    began: Instant,
    attempt: u32,
}

/// The runs of handlers.
#[derive(Debug, Clone, Default)]
struct Watch {
    ended: Arc<Mutex<Vec<Ran>>>,
    running: Arc<Mutex<(usize, usize)>>,
    changed: Arc<Notify>,
}

impl Watch {
    async fn run(&self, ctx: &Context, seconds: u64) {
        let info = ctx.info();
        let (kind, key) = (info.kind.to_string(), info.key.as_ref().map(ToString::to_string));
        let ran = Ran { kind, key, began: Instant::now(), attempt: info.attempt };
        let entered = Entered::new(self);
        sleep(SECOND * u32::try_from(seconds).unwrap()).await;
        drop(entered);
        self.ended.lock().unwrap().push(ran);
        self.changed.notify_waiters();
    }

    fn ended(&self) -> Vec<Ran> {
        self.ended.lock().unwrap().clone()
    }

    fn count(&self, kind: &str) -> usize {
        self.ended.lock().unwrap().iter().filter(|ran| ran.kind == kind).count()
    }

    /// The most that ran at once.
    fn most(&self) -> usize {
        self.running.lock().unwrap().1
    }

    /// Waits until this number of jobs of a kind have ended, and a moment for their deletion.
    async fn until(&self, kind: &str, count: usize) {
        let ends = async {
            loop {
                let changed = self.changed.notified();
                if self.count(kind) >= count {
                    return;
                }
                changed.await;
            }
        };
        let in_time = timeout(DAY * 3, ends).await;
        in_time.unwrap_or_else(|_| panic!("only {} of {count} {kind} have ended", self.count(kind)));
        sleep(SECOND).await;
    }
}

/// A handler that runs, until it is dropped.
struct Entered(Watch);

impl Entered {
    fn new(watch: &Watch) -> Self {
        let mut running = watch.running.lock().unwrap();
        running.0 += 1;
        running.1 = running.1.max(running.0);
        Self(watch.clone())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.0.running.lock().unwrap().0 -= 1;
    }
}

async fn slow(job: Slow, ctx: Context, State(watch): State<Watch>) -> Result<(), JobError> {
    watch.run(&ctx, job.seconds).await;
    Ok(())
}

async fn quick(job: Quick, ctx: Context, State(watch): State<Watch>) -> Result<(), JobError> {
    watch.run(&ctx, job.seconds).await;
    Ok(())
}

async fn other(job: Other, ctx: Context, State(watch): State<Watch>) -> Result<(), JobError> {
    watch.run(&ctx, job.seconds).await;
    Ok(())
}

async fn queue<M: QueueMessage>(storage: &Storage) -> Queue<M> {
    storage.queue::<M>().await.unwrap()
}

/// Sends this number of jobs.
async fn send<M: QueueMessage>(storage: &Storage, count: usize, message: impl Fn() -> M) {
    let messages: Vec<M> = (0..count).map(|_| message()).collect();
    let _ = queue::<M>(storage).await.send_all(&messages).await.unwrap();
}
