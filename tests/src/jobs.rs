//! A message type, a worker on virtual time and a log of outcomes, for tests of the core.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::memory::TokioClock;
use jobqueue::{Event, QueueMessage, Runtime, Storage, Worker, WorkerBuilder, memory};
use serde::{Deserialize, Serialize};

/// A message with a name and data. The lease is 30 s, and there are 3 attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(
    queue = "tasks",
    kind = "task",
    poison_threshold = 3,
    lease = "30s",
    backoff(base = "1s", max = "10s")
)]
pub struct Task {
    /// The name.
    #[message(key, non_empty)]
    pub name: String,
    /// The payload.
    #[serde(default)]
    pub data: String,
}

/// Returns a task without data.
pub fn task(name: impl Into<String>) -> Task {
    Task { name: name.into(), data: String::new() }
}

/// Returns the virtual clock of this thread and of its test. Storage, queues, workers and sweeps must use the
/// same clock.
pub fn clock() -> Arc<TokioClock> {
    thread_local!(static CLOCK: Arc<TokioClock> = Arc::default());
    CLOCK.with(Arc::clone)
}

/// Returns a runtime on paused time with [`clock`].
pub fn runtime() -> Runtime {
    Runtime::virtual_time(clock())
}

/// Returns a storage in memory on [`runtime`].
pub fn in_memory() -> Storage {
    memory::open_on(runtime())
}

/// Returns the number of payloads that are stored in blobs.
pub async fn payloads(storage: &Storage) -> usize {
    let container = "jobqueue-payloads".parse().unwrap();
    storage.blobs().list_blobs(&container, "", None).await.unwrap().blobs.len()
}

/// Returns a worker on paused time. Uses [`runtime`], unless the storage already has a runtime without
/// threads.
pub fn worker(storage: &Storage) -> WorkerBuilder {
    let storage = storage.clone();
    Worker::builder(if storage.runtime().starts_threads() {
        storage.with_runtime(runtime())
    } else {
        storage
    })
}

/// A list of names, in order.
pub type Log = Arc<Mutex<Vec<String>>>;

/// Returns a log of the outcomes of deliveries, and the listener that writes it.
pub fn outcomes() -> (Log, impl Fn(&Event) + Send + Sync + 'static) {
    let log = Log::default();
    let sink = Arc::clone(&log);
    (log, move |event: &Event| {
        if let Event::Finished { outcome, .. } = event {
            sink.lock().unwrap_or_else(|e| e.into_inner()).push(outcome.as_str().to_owned());
        }
    })
}

/// Resolves after this number of seconds.
pub async fn after(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
