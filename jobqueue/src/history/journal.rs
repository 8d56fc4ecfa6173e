//! Gathers ended jobs in memory.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;

use super::chunk::{Chunk, Ended};
use super::{FULL, MOST};
use crate::clock::Clock;
use crate::job::JobInfo;
use crate::job::outcome::{Outcome, printable};
use crate::sync::lock;

/// The most characters of an error in the journal.
const MAX_ERROR: usize = 500;

/// The ended jobs that wait to be written.
#[derive(Debug)]
pub(crate) struct Journal {
    worker: Arc<str>,
    clock: Arc<dyn Clock>,
    waiting: Mutex<Waiting>,
    many: Notify,
}

#[derive(Debug)]
struct Waiting {
    chunk: Chunk,
    dropped: u64,
    /// True if the writer was told that a segment is full.
    is_told: bool,
}

impl Waiting {
    fn new(worker: &Arc<str>) -> Self {
        Self { chunk: Chunk::new(Arc::clone(worker)), dropped: 0, is_told: false }
    }
}

impl Journal {
    /// Returns the journal of the worker with this name.
    pub(crate) fn new(worker: &str, clock: Arc<dyn Clock>) -> Self {
        let worker = Arc::from(worker);
        Self { waiting: Mutex::new(Waiting::new(&worker)), worker, clock, many: Notify::new() }
    }

    /// Adds a job if this delivery was its end. Drops it if too much waits.
    pub(crate) fn push(&self, job: &JobInfo, outcome: &Outcome, ran: Duration, error: Option<&str>) {
        let error = error.map(|error| printable(error, MAX_ERROR));
        let ended = Ended { job, outcome, ran, at: self.clock.now(), error: error.as_deref() };
        let mut waiting = lock(&self.waiting);
        if waiting.chunk.len() >= MOST {
            waiting.dropped += 1;
            return;
        }
        waiting.chunk.push(&ended);
        if waiting.chunk.len() >= FULL && !waiting.is_told {
            waiting.is_told = true;
            drop(waiting);
            self.many.notify_one();
        }
    }

    /// Waits until a segment is full. Cancel-safe.
    pub(super) async fn many(&self) {
        self.many.notified().await;
    }

    /// Takes the bytes of what waits, and its earliest and latest end; `None` if nothing waits.
    pub(super) fn take(&self) -> Option<(Vec<u8>, (i64, i64))> {
        let Waiting { chunk, dropped, .. } =
            std::mem::replace(&mut *lock(&self.waiting), Waiting::new(&self.worker));
        if dropped > 0 {
            tracing::warn!(
                dropped,
                "ended jobs are missing in the history: it could not be written for long"
            );
        }
        chunk.finish()
    }
}
