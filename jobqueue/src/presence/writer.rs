//! Keeps the record of a worker up to date for as long as the worker runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::record::{ListeningQueue, WorkerRecord};
use super::requests::{Requests, StoredRequest};
use super::store::{self, Document, Records};
use super::tracker::{Snapshot, Tracker};
use crate::error::Error;
use crate::job::outcome::chain;
use crate::json_blob::{Edit, JsonBlob, Known};
use crate::runtime::Runtime;
use crate::storage::{BlobName, BlobStore};

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
    let (records, requests) = (Records::new(Arc::clone(&blobs), runtime.clone()), Requests::new(blobs));
    let document = records.document(blob);
    let mut writer = Writer {
        records,
        requests,
        runtime,
        about,
        tracker,
        id,
        document,
        started,
        known: Known::Absent,
        known_requests: BTreeMap::new(),
        read: None,
        written: Instant::now(),
    };
    let _ = ended.run_until_cancelled(writer.run()).await;
    // What it answered last, and that it is gone.
    let last = async {
        writer.answer().await?;
        Ok::<_, Error>(writer.records.remove(writer.document.name()).await?)
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
    document: JsonBlob<Document>,
    started: String,
    known: Known<Document>,
    known_requests: BTreeMap<BlobName, StoredRequest>,
    /// The notifications up to which the requests were read; `None` before the first time.
    read: Option<u64>,
    /// The beginning of the last write that succeeded.
    written: Instant,
}

impl Writer {
    async fn run(&mut self) {
        let mut sweep = Instant::now();
        loop {
            let written = Instant::now();
            match self.round().await {
                Err(error) if self.read.is_none() => {
                    tracing::warn!(error = %chain(&error), "the requests to cancel jobs cannot be read; the worker waits for them for a while");
                }
                Err(error) => tracing::debug!(error = %chain(&error), "the worker's record was not written"),
                Ok(()) => {}
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
        let known = std::mem::replace(&mut self.known, Known::Nothing);
        let mut is_new = true;
        let change = |before: Option<Document>| {
            is_new = before.is_none();
            let notifications = before.map_or(0, |before| before.notifications);
            Edit::Write(Document { record: self.record(), notifications, alive: None }, ())
        };
        let begun = Instant::now();
        let Some(version) = self.document.change(known, change).await?.version else { return Ok(()) };
        // A request is stored before its notification.
        let told = Some(version.value.notifications);
        self.known = Known::Version(version);
        // No operator notifies a worker that has not written for three intervals.
        if begun.duration_since(self.written) > self.about.interval * 2 {
            self.read = None;
        }
        self.written = begun;
        if is_new || told != self.read {
            let queues = self.about.queues.iter().map(|queue| &*queue.name).collect();
            self.known_requests = self.requests.all(&queues, &self.known_requests).await?;
            self.tracker.set_requests(self.known_requests.values());
            self.read = told;
        }
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
            host: crate::process::host().to_owned(),
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
