//! Collects ended jobs in memory, as entries of the journal. Knows jobs and their outcomes; makes no request.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use tokio::sync::Notify;

use crate::job::outcome::{Outcome, kept_text, printable};
use crate::job::{JobInfo, Reason, TraceContext};
use crate::runtime::Runtime;
use crate::storage::JournalEntry;
use crate::storage::rules::micros::whole_micros;
use crate::sync::lock;

/// The number of entries that are written at once, before their time if they are there sooner.
const FULL: usize = 4_096;
/// The number of bytes of their texts from which fewer entries are written at once.
const FULL_BYTES: usize = 1024 * 1024;
/// The number of full appends that wait at most.
const MOST: usize = 8;
const MAX_ERROR: usize = 500;

/// The ended jobs of a worker that are not written yet.
#[derive(Debug)]
pub(crate) struct JournalBuffer {
    worker: Arc<str>,
    runtime: Runtime,
    waiting: Mutex<Waiting>,
    full: Notify,
}

#[derive(Debug)]
struct Waiting {
    ended: Vec<Ended>,
    /// The sum of their texts.
    bytes: usize,
    dropped: u64,
    /// The number of the next entry. The first is random, so that other workers have others.
    number: u64,
}

impl Waiting {
    /// Returns whether so many appends wait.
    fn holds(&self, appends: usize) -> bool {
        self.ended.len() >= appends * FULL || self.bytes >= appends * FULL_BYTES
    }
}

/// An ended job. The end of a job only copies pointers; the entry is made when it is written.
#[derive(Debug)]
struct Ended {
    at: SystemTime,
    number: u64,
    queue: Arc<str>,
    id: Arc<str>,
    source: Arc<str>,
    kind: Arc<str>,
    key: Option<Arc<str>>,
    outcome: Outcome,
    attempt: u32,
    inserted: SystemTime,
    ran: Duration,
    error: Option<String>,
    trace: TraceContext,
}

impl Ended {
    /// Returns the number of bytes of the texts that differ from job to job.
    fn bytes(&self) -> usize {
        let optional =
            self.key.as_ref().map_or(0, |key| key.len()) + self.error.as_ref().map_or(0, String::len);
        self.id.len() + self.source.len() + self.kind.len() + optional
    }
}

fn kept(text: &Arc<str>) -> Arc<str> {
    let kept = kept_text(text);
    if kept.len() == text.len() { Arc::clone(text) } else { Arc::from(kept) }
}

impl JournalBuffer {
    /// Returns the buffer of the worker with this name.
    pub(crate) fn new(worker: &str, runtime: Runtime) -> Self {
        let waiting = Waiting { ended: Vec::new(), bytes: 0, dropped: 0, number: runtime.random_u64() };
        Self { worker: Arc::from(worker), runtime, waiting: Mutex::new(waiting), full: Notify::new() }
    }

    /// Adds a job if this delivery was its end. Drops it if too many wait.
    pub(crate) fn push(&self, job: &JobInfo, outcome: &Outcome, ran: Duration, error: Option<&str>) {
        let error = match outcome {
            Outcome::Completed => None,
            Outcome::CompletedUncertain | Outcome::DeadLettered(_) => {
                error.map(|error| printable(error, MAX_ERROR))
            }
            _ => return,
        };
        let mut ended = Ended {
            at: self.runtime.now(),
            number: 0,
            queue: Arc::from(&job.queue),
            id: Arc::clone(&job.id),
            source: Arc::clone(&job.source),
            kind: kept(&job.kind),
            key: job.key.as_ref().map(kept),
            outcome: outcome.clone(),
            attempt: job.attempt,
            inserted: job.inserted,
            ran,
            error,
            trace: job.trace,
        };
        let mut waiting = lock(&self.waiting);
        if waiting.holds(MOST) {
            waiting.dropped += 1;
            return;
        }
        ended.number = waiting.number;
        waiting.number = waiting.number.wrapping_add(1);
        let was_full = waiting.holds(1);
        waiting.bytes += ended.bytes();
        waiting.ended.push(ended);
        if !was_full && waiting.holds(1) {
            drop(waiting);
            self.full.notify_one();
        }
    }

    /// Waits until there is enough to write. Cancel-safe.
    pub(super) async fn full(&self) {
        self.full.notified().await;
    }

    /// Takes the entries that wait, divided into appends of limited size.
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
        let (mut appends, mut next, mut bytes) = (Vec::new(), Vec::new(), 0);
        for ended in ended {
            if next.len() >= FULL || bytes >= FULL_BYTES {
                appends.push(Arc::from(std::mem::take(&mut next)));
                bytes = 0;
            }
            bytes += ended.bytes();
            next.push(self.entry(ended));
        }
        if !next.is_empty() {
            appends.push(Arc::from(next));
        }
        appends
    }

    fn entry(&self, ended: Ended) -> JournalEntry {
        let reason = match &ended.outcome {
            Outcome::DeadLettered(reason) => Some(reason),
            _ => None,
        };
        JournalEntry {
            ended: whole_micros(ended.at),
            number: ended.number,
            queue: ended.queue,
            id: ended.id,
            source: ended.source,
            kind: ended.kind,
            key: ended.key,
            outcome: Arc::from(ended.outcome.as_str()),
            reason: reason.map(Reason::as_str).map(Arc::from),
            attempt: ended.attempt,
            inserted: whole_micros(ended.inserted),
            ran: ended.ran,
            error: ended.error.map(Arc::from),
            worker: Arc::clone(&self.worker),
            trace: Some(Arc::from(ended.trace.traceparent())),
        }
    }
}
