//! Keeps the record of a worker up to date while the worker runs.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::document::WorkerDocument;
use super::record::{ListeningQueue, WorkerRecord};
use super::requests::{MAX_CONCURRENT_CALLS, Requests};
use super::store::{self, Records};
use super::tracker::{Snapshot, Tracker};
use crate::clock::rfc3339;
use crate::error::Error;
use crate::job::outcome::chain;
use crate::json_blob::{JsonBlob, Known};
use crate::runtime::Runtime;
use crate::storage::{BlobStore, StoreErrorKind};

/// The interval of sweeps of the records that dead workers have left.
const SWEEP_INTERVAL: Duration = Duration::from_secs(86_400);
/// The minimum time between two urgent writes.
const MIN_URGENT_PAUSE: Duration = Duration::from_millis(200);
/// The pause after the requests could not be read or an answer could not be stored.
const RETRY_PAUSE: Duration = Duration::from_secs(5);
/// The timeout for the last answers and the removal of the record.
const LAST_REQUEST_TIMEOUT: Duration = Duration::from_secs(3);

/// The constant data of a worker.
#[derive(Debug, Clone)]
pub(crate) struct WorkerFacts {
    pub(crate) name: String,
    pub(crate) queues: Vec<ListeningQueue>,
    pub(crate) slots: usize,
    pub(crate) interval: Duration,
}

/// Writes the record at every interval until `ended` fires, then removes the record. Errors are only logged.
pub(crate) async fn run_record_writer(
    blobs: Arc<dyn BlobStore>,
    runtime: Runtime,
    facts: WorkerFacts,
    tracker: Arc<Tracker>,
    ended: CancellationToken,
) {
    let id = runtime.uuid_v4().simple().to_string();
    let blob = match store::name(&id) {
        Ok(blob) => blob,
        Err(error) => return crate::log::error!(error = %chain(&error), "the worker has no record"),
    };
    let started = rfc3339(runtime.now());
    let records = Records::new(Arc::clone(&blobs), runtime.clone());
    let requests = Requests::new(blobs, runtime.clone());
    let mut writer = RecordWriter {
        document: records.document(blob),
        requests: requests.clone(),
        runtime: runtime.clone(),
        facts,
        tracker: Arc::clone(&tracker),
        id,
        started,
        known: Known::Absent,
        read_up_to: None,
        last_write: Instant::now(),
        is_refused: false,
    };
    // Concurrently: neither many answers nor many old records may delay the record and the reading of
    // requests.
    let run = async {
        tokio::join!(
            writer.run(),
            answer_all(&requests, &tracker),
            sweep_daily(&records, &requests, &runtime)
        )
    };
    let _ = ended.run_until_cancelled(run).await;
    // The last answers, and the end of the record.
    let last = async { tokio::join!(answer(&requests, &tracker), records.remove(writer.document.name())) };
    if !matches!(timeout(LAST_REQUEST_TIMEOUT, last).await, Ok((Ok(()), Ok(())))) {
        crate::log::debug!("the worker's record was not removed and will become stale");
    }
}

/// Reads the requests once, for a worker that keeps no record, and answers them until `ended` fires. Errors
/// are only logged; after a permanent error the worker starts without the requests.
pub(crate) async fn read_once(
    blobs: Arc<dyn BlobStore>,
    runtime: Runtime,
    queues: Vec<String>,
    tracker: Arc<Tracker>,
    ended: CancellationToken,
) {
    let requests = Requests::new(blobs, runtime);
    let run = async {
        loop {
            match requests.list_for(queues.clone()).await {
                Ok(listed) => break tracker.set_requests(listed),
                Err(error) => {
                    warn_unreadable_requests(&error);
                    if !error.is_retryable() {
                        break tracker.set_requests(BTreeMap::new());
                    }
                }
            }
            sleep(RETRY_PAUSE).await;
        }
        answer_all(&requests, &tracker).await;
    };
    let _ = ended.run_until_cancelled(run).await;
    let _ = timeout(LAST_REQUEST_TIMEOUT, answer(&requests, &tracker)).await;
}

fn warn_unreadable_requests(error: &Error) {
    crate::log::warn!(error = %chain(error), "the requests to cancel jobs cannot be read; the worker waits for them for a while");
}

/// Stores answers as jobs end.
async fn answer_all(requests: &Requests, tracker: &Tracker) {
    loop {
        if let Err(error) = answer(requests, tracker).await {
            crate::log::debug!(error = %chain(&error), "an answer to a request to cancel a job was not stored");
            sleep(RETRY_PAUSE).await;
        } else {
            tracker.answered().await;
        }
    }
}

/// Stores all waiting answers, up to [`MAX_CONCURRENT_CALLS`] concurrently.
async fn answer(requests: &Requests, tracker: &Tracker) -> Result<(), Error> {
    loop {
        let next = tracker.next_answers(MAX_CONCURRENT_CALLS);
        if next.is_empty() {
            return Ok(());
        }
        let stored = next.into_iter().map(|(request, answer)| async move {
            let (queue, key) = &request;
            requests.answer(queue, key, answer).await?;
            tracker.forget_answer(&request, answer);
            Ok::<_, Error>(())
        });
        try_join_all(stored).await?;
    }
}

/// Removes the records of dead workers and expired requests every day.
async fn sweep_daily(records: &Records, requests: &Requests, runtime: &Runtime) {
    loop {
        let next = Instant::now() + SWEEP_INTERVAL;
        let now = runtime.now();
        for swept in [records.sweep(now).await, requests.sweep(now).await] {
            if let Err(error) = swept {
                crate::log::debug!(error = %chain(&error), "records of dead workers were not removed");
            }
        }
        sleep_until(next).await;
    }
}

struct RecordWriter {
    requests: Requests,
    runtime: Runtime,
    facts: WorkerFacts,
    tracker: Arc<Tracker>,
    id: String,
    document: JsonBlob<WorkerDocument>,
    started: String,
    known: Known<WorkerDocument>,
    /// The number of notifications when the requests were last read; `None` if they must be read again.
    read_up_to: Option<u64>,
    /// The start of the last successful write.
    last_write: Instant,
    /// True after the storage has permanently refused the record, which is logged once.
    is_refused: bool,
}

impl RecordWriter {
    async fn run(&mut self) {
        loop {
            let written = Instant::now();
            match self.round().await {
                Err(error) if !self.tracker.has_requests().is_cancelled() => warn_unreadable_requests(&error),
                Err(error) if !self.is_refused && !error.is_retryable() => {
                    self.is_refused = true;
                    crate::log::warn!(error = %chain(&error), "the worker's record was refused: no tool shows this worker");
                }
                Err(error) => {
                    crate::log::debug!(error = %chain(&error), "the worker's record was not written")
                }
                Ok(()) => {}
            }
            let next = written + self.facts.interval;
            tokio::select! {
                biased;
                () = sleep_until(next) => {}
                () = self.tracker.urgent() => sleep_until((written + MIN_URGENT_PAUSE).min(next)).await,
            }
        }
    }

    async fn round(&mut self) -> Result<(), Error> {
        let written = self.write().await;
        // An operator stores a request before its notification. If the record cannot be written, no
        // notification can be read either, so the requests are read in every round.
        let notifications = written.as_ref().ok().copied();
        if notifications.is_none() || notifications != self.read_up_to {
            let queues: Vec<_> = self.facts.queues.iter().map(|queue| queue.name.clone()).collect();
            match self.requests.list_for(queues).await {
                Ok(listed) => self.tracker.set_requests(listed),
                // The error is permanent: the worker starts without the requests.
                Err(error) if !error.is_retryable() && !self.tracker.has_requests().is_cancelled() => {
                    warn_unreadable_requests(&error);
                    self.tracker.set_requests(BTreeMap::new());
                }
                Err(error) => return Err(error),
            }
            self.read_up_to = notifications;
        }
        written.map(drop)
    }

    /// Writes the record, with as many running jobs as fit beside the counters, whose number is limited.
    /// Returns the number of notifications.
    async fn write(&mut self) -> Result<u64, Error> {
        let (mut known, mut record) = (std::mem::replace(&mut self.known, Known::Nothing), self.record());
        let begun = Instant::now();
        let written = loop {
            match self.document.change(known, |found| WorkerDocument::written(found, &record)).await {
                Err(error) if error.kind() == StoreErrorKind::TooLarge && !record.running.is_empty() => {
                    known = Known::Nothing;
                    record.running.truncate(record.running.len() / 2);
                }
                written => break written?,
            }
        };
        let is_new = written.result.is_none();
        let notifications = written.result.unwrap_or_default();
        self.known = written.version.map_or(Known::Nothing, Known::Version);
        // Operators do not notify a worker that has not written for three intervals, so the requests are read
        // again. The limit is two intervals, because a write takes effect at an unknown time within its
        // request.
        if is_new || self.last_write.elapsed() > self.facts.interval * 2 {
            self.read_up_to = None;
        }
        self.last_write = begun;
        Ok(notifications)
    }

    fn record(&self) -> WorkerRecord {
        let now = self.runtime.now();
        let Snapshot { running, running_total, counters, open_circuits, draining } =
            self.tracker.snapshot(now);
        let queues = self
            .facts
            .queues
            .iter()
            .cloned()
            .map(|queue| ListeningQueue { circuit_open: open_circuits.contains(&queue.name), ..queue });
        WorkerRecord {
            id: self.id.clone(),
            name: self.facts.name.clone(),
            host: crate::process::host().to_owned(),
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: self.started.clone(),
            written: rfc3339(now),
            interval_seconds: self.facts.interval.as_secs_f64(),
            queues: queues.collect(),
            slots: u32::try_from(self.facts.slots).unwrap_or(u32::MAX),
            draining,
            running,
            running_total,
            counters,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::envelope::{Envelope, Payload};
    use crate::job::TraceContext;
    use crate::job::outcome::Outcome;
    use crate::memory;
    use crate::storage::QueueName;

    #[tokio::test(start_paused = true)]
    async fn record_has_the_first_jobs_that_fit_and_all_counters() {
        let (storage, tracker) = (memory::open_on(Runtime::paused()), Arc::<Tracker>::default());
        for number in 0..1_000 {
            // JSON encodes this character in six bytes.
            let long = "\u{1}".repeat(1_000);
            let mut event = Envelope::new(format!("{number}{long}"), long.as_str(), "letter", Payload::None);
            event.key = Some(long);
            let job = event.job(QueueName::new("letters").unwrap(), TraceContext::new(1, 1, 1).unwrap());
            tracker.count("letters", Some(&job), &Outcome::Completed, Duration::ZERO);
            std::mem::forget(tracker.begin(&Arc::new(job), Instant::now(), Duration::from_secs(30)));
        }
        let facts = WorkerFacts {
            name: "w".into(),
            queues: Vec::new(),
            slots: 1_000,
            interval: Duration::from_secs(15),
        };
        let (blobs, runtime) = (Arc::clone(storage.blobs()), storage.runtime().clone());
        let writing =
            run_record_writer(Arc::clone(&blobs), runtime.clone(), facts, tracker, CancellationToken::new());
        let _ = timeout(Duration::from_secs(1), writing).await;
        let record = Records::new(blobs, runtime).all().await.unwrap().0.remove(0).record;
        assert_eq!(record.running.len(), 250);
        assert_eq!(record.running_total, 1_000);
        assert!(record.running[0].id.starts_with('0'));
        assert_eq!(record.counters[0].completed, 1_000);
    }
}
