//! Keeps the record of a worker up to date for as long as the worker runs.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::record::{ListeningQueue, WorkerRecord};
use super::requests::Requests;
use super::store::{self, Records};
use super::tracker::{Snapshot, Tracker};
use crate::error::Error;
use crate::job::outcome::chain;
use crate::runtime::Runtime;
use crate::storage::BlobName;
use crate::storage::{BlobStore, ETag, PutBlob, StoreErrorKind as Kind};

/// The number of tries to write a record that others rewrite.
const TRIES: u32 = 3;
/// The time between two sweeps of the records that dead workers have left.
const SWEEP_EVERY: Duration = Duration::from_secs(86_400);
/// The least time between two urgent writes.
const LEAST_PAUSE: Duration = Duration::from_millis(200);
/// The timeout for the removal of the record at the end.
const LAST_REQUEST: Duration = Duration::from_secs(3);

/// The constant data of a worker.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(crate) queues: Vec<ListeningQueue>,
    pub(crate) slots: usize,
    pub(crate) interval: Duration,
}

/// Writes the record at every interval until `ended` fires, then removes it. Errors are only logged.
pub(crate) async fn keep(
    blobs: Arc<dyn BlobStore>,
    runtime: Runtime,
    about: About,
    tracker: Arc<Tracker>,
    ended: CancellationToken,
) {
    let id = runtime.uuid_v4().simple().to_string();
    let blob = match store::name(&id) {
        Ok(blob) => blob,
        Err(error) => return tracing::error!(error = %chain(&error), "the worker has no record"),
    };
    let started = store::time(runtime.now());
    let (records, requests) = (Records::new(Arc::clone(&blobs)), Requests::new(blobs));
    let mut writer = Writer { records, requests, runtime, about, tracker, id, blob, started, tag: None };
    let _ = ended.run_until_cancelled(writer.run()).await;
    // What it answered last, and that it is gone.
    let last = async {
        writer.answer().await?;
        Ok::<_, Error>(writer.records.remove(&writer.blob).await?)
    };
    if !matches!(timeout(LAST_REQUEST, last).await, Ok(Ok(()))) {
        tracing::debug!("the worker's record was not removed and will become stale");
    }
}

struct Writer {
    records: Records,
    requests: Requests,
    runtime: Runtime,
    about: About,
    tracker: Arc<Tracker>,
    id: String,
    blob: BlobName,
    started: String,
    /// The tag of the last write; `None` if it is not known.
    tag: Option<ETag>,
}

impl Writer {
    async fn run(&mut self) {
        let mut sweep = Instant::now();
        loop {
            let written = Instant::now();
            if let Err(error) = self.round().await {
                tracing::debug!(error = %chain(&error), "the worker's record was not written");
            }
            if sweep <= written {
                sweep = written + SWEEP_EVERY;
                if let Err(error) = self.sweep().await {
                    tracing::debug!(error = %chain(&error), "records of dead workers were not removed");
                }
            }
            let next = written + self.about.interval;
            tokio::select! {
                biased;
                () = sleep_until(next) => {}
                () = self.tracker.urgent() => sleep_until((written + LEAST_PAUSE).min(next)).await,
            }
        }
    }

    async fn round(&mut self) -> Result<(), Error> {
        self.answer().await?;
        for _ in 0..TRIES {
            let options = self.tag.clone().map_or_else(PutBlob::new, PutBlob::if_match);
            match self.records.write(&self.blob, &self.record(), options).await {
                Ok(properties) => {
                    // After the first write, or one whose fate is not known, there may be a request without a
                    // notification.
                    if self.tag.replace(properties.etag).is_none() {
                        self.read_requests().await?;
                    }
                    return Ok(());
                }
                Err(e) if matches!(e.kind(), Kind::ConditionNotMet | Kind::BlobNotFound) => {
                    // Read before the requests, so that a later rewriting is noticed.
                    self.tag = self.records.tag(&self.blob).await?;
                    if self.tag.is_some() {
                        self.read_requests().await?;
                    }
                }
                Err(e) => {
                    self.tag = None;
                    return Err(e.into());
                }
            }
        }
        Ok(())
    }

    async fn read_requests(&self) -> Result<(), Error> {
        self.tracker.set_requests(self.requests.all().await?);
        Ok(())
    }

    async fn answer(&self) -> Result<(), Error> {
        while let Some((stored, answer)) = self.tracker.next_answer() {
            self.requests.answer(&stored.request, answer).await?;
            self.tracker.answered();
        }
        Ok(())
    }

    async fn sweep(&self) -> Result<(), Error> {
        let now = self.runtime.now();
        self.records.sweep(now).await?;
        self.requests.sweep(now).await
    }

    fn record(&self) -> WorkerRecord {
        let now = self.runtime.now();
        let Snapshot { running, running_total, counters, open_circuits, draining } =
            self.tracker.snapshot(now);
        let queues = self
            .about
            .queues
            .iter()
            .cloned()
            .map(|queue| ListeningQueue { circuit_open: open_circuits.contains(&queue.name), ..queue });
        WorkerRecord {
            id: self.id.clone(),
            name: self.about.name.clone(),
            host: super::host::name().to_owned(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: self.started.clone(),
            written: store::time(now),
            interval_seconds: self.about.interval.as_secs_f64(),
            queues: queues.collect(),
            slots: u32::try_from(self.about.slots).unwrap_or(u32::MAX),
            draining,
            running,
            running_total,
            counters,
        }
    }
}
