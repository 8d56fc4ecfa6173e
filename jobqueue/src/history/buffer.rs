//! Buffers ended jobs in memory, as entries of the journal. Knows jobs and their outcomes, and makes no
//! request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use crate::job::JobInfo;
use crate::job::outcome::{Outcome, kept_text, printable};
use crate::runtime::Runtime;
use crate::storage::JournalEntry;
use crate::storage::rules::micros::whole_micros;
use crate::sync::lock;

/// The number of entries in a full append, which is written before the interval is over.
const APPEND_ENTRIES: usize = 4_096;
/// The number of bytes of the entries' texts from which an append with fewer entries is full.
const APPEND_BYTES: usize = 1024 * 1024;
/// The maximum number of full appends that wait.
const MAX_PENDING_APPENDS: usize = 8;
/// The maximum length of an error text in an entry.
const MAX_ERROR_CHARS: usize = 500;

/// The ended jobs of a worker that the journal does not have yet.
#[derive(Debug)]
pub(crate) struct JournalBuffer {
    worker: Arc<str>,
    runtime: Runtime,
    waiting: Mutex<PendingEntries>,
    full: Notify,
}

#[derive(Debug)]
struct PendingEntries {
    ended: Vec<JournalEntry>,
    /// The bytes of the entries' texts.
    bytes: usize,
    dropped: u64,
    /// The number of the next entry. The first number is random, so that workers do not share numbers.
    number: u64,
}

impl PendingEntries {
    /// Returns whether at least this many full appends wait.
    fn holds(&self, appends: usize) -> bool {
        self.ended.len() >= appends * APPEND_ENTRIES || self.bytes >= appends * APPEND_BYTES
    }
}

/// Returns the total length of the texts that differ from job to job.
fn text_bytes(entry: &JournalEntry) -> usize {
    let optional = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
    entry.id.len() + entry.source.len() + entry.kind.len() + optional(&entry.key) + optional(&entry.error)
}

fn shortened(text: &Arc<str>) -> Arc<str> {
    let kept = kept_text(text);
    if kept.len() == text.len() { Arc::clone(text) } else { Arc::from(kept) }
}

impl JournalBuffer {
    /// Returns the buffer of the worker with this name.
    pub(crate) fn new(worker: &str, runtime: Runtime) -> Self {
        let waiting =
            PendingEntries { ended: Vec::new(), bytes: 0, dropped: 0, number: runtime.random_u64() };
        Self { worker: Arc::from(worker), runtime, waiting: Mutex::new(waiting), full: Notify::new() }
    }

    /// Adds a job if this delivery ended it. Drops the entry and counts it if too many entries wait.
    pub(crate) fn push(&self, job: &JobInfo, outcome: &Outcome, ran: Duration, error: Option<&str>) {
        let (reason, error) = match outcome {
            Outcome::Completed => (None, None),
            Outcome::CompletedUncertain => (None, error),
            Outcome::DeadLettered(reason) => (Some(reason.as_str()), error),
            _ => return,
        };
        let mut entry = JournalEntry {
            ended: whole_micros(self.runtime.now()),
            number: 0,
            queue: Arc::from(&job.queue),
            id: Arc::clone(&job.id),
            source: Arc::clone(&job.source),
            kind: shortened(&job.kind),
            key: job.key.as_ref().map(shortened),
            outcome: Arc::from(outcome.as_str()),
            reason: reason.map(Arc::from),
            attempt: job.attempt,
            inserted: whole_micros(job.inserted),
            ran,
            error: error.map(|error| Arc::from(printable(error, MAX_ERROR_CHARS))),
            worker: Arc::clone(&self.worker),
            trace: Some(Arc::from(job.trace.traceparent())),
        };
        let mut waiting = lock(&self.waiting);
        if waiting.holds(MAX_PENDING_APPENDS) {
            waiting.dropped += 1;
            return;
        }
        entry.number = waiting.number;
        waiting.number = waiting.number.wrapping_add(1);
        let was_full = waiting.holds(1);
        waiting.bytes += text_bytes(&entry);
        waiting.ended.push(entry);
        if !was_full && waiting.holds(1) {
            drop(waiting);
            self.full.notify_one();
        }
    }

    /// Waits until an append is full. Cancel-safe.
    pub(super) async fn full(&self) {
        self.full.notified().await;
    }

    /// Takes the waiting entries, divided into appends of limited size.
    pub(super) fn take(&self) -> Vec<Arc<[JournalEntry]>> {
        let (ended, dropped) = {
            let mut waiting = lock(&self.waiting);
            waiting.bytes = 0;
            (std::mem::take(&mut waiting.ended), std::mem::take(&mut waiting.dropped))
        };
        if dropped > 0 {
            crate::log::warn!(
                dropped,
                "the journal could not be written for long; ended jobs are missing in it"
            );
        }
        let (mut appends, mut next, mut size) = (Vec::new(), Vec::new(), 0);
        for entry in ended {
            if next.len() >= APPEND_ENTRIES || size >= APPEND_BYTES {
                appends.push(Arc::from(std::mem::take(&mut next)));
                size = 0;
            }
            size += text_bytes(&entry);
            next.push(entry);
        }
        if !next.is_empty() {
            appends.push(Arc::from(next));
        }
        appends
    }
}
