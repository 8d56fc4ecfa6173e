//! The ledger: everything that happened in a world, in order.
//!
//! A job is named by its id; a job from a source of its own is named by both: `/shop 17`.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::job::outcome::Outcome;
use crate::storage::Operation;
use crate::sync::lock;
use crate::testing::faults::Fault;

/// Returns the name of a job in the history: its id, with its source before it if that is not one of this framework's own.
pub(super) fn subject(source: &str, id: &str) -> Arc<str> {
    if source.starts_with("/jobqueue/") { id.into() } else { format!("{source} {id}").into() }
}

/// The answer to a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The message is stored.
    Acknowledged,
    /// It is certainly not stored.
    Refused,
    /// It may be stored.
    Unknown,
}

/// The end of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// It returned `Ok`.
    Done,
    /// It returned an error that counts as an attempt, or panicked.
    Failed,
    /// It asked to be run again later, without counting an attempt.
    Snoozed,
    /// It was dropped before it returned.
    Dropped,
}

/// An event in a world.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fact {
    /// A send began.
    SendBegan {
        /// The job.
        id: Arc<str>,
        /// The queue it is for.
        queue: Arc<str>,
    },
    /// A send returned.
    Sent {
        /// The job.
        id: Arc<str>,
        /// The answer to the send.
        verdict: Verdict,
        /// The earliest time at which the message may expire.
        expires: Option<Duration>,
    },
    /// A handler started.
    RunBegan {
        /// The number of the run in this world.
        run: u64,
        /// The job.
        id: Arc<str>,
        /// The dequeue count of its message.
        delivery: u32,
        /// The number of the attempt.
        attempt: u32,
        /// The maximum number of attempts.
        max_attempts: u32,
    },
    /// A handler ended.
    RunEnded {
        /// The number of the run.
        run: u64,
        /// The job.
        id: Arc<str>,
        /// The end.
        end: RunEnd,
    },
    /// A worker reported the outcome of a delivery.
    Settled {
        /// The job; empty if the message could not be read.
        id: Arc<str>,
        /// The dequeue count.
        delivery: u32,
        /// The outcome.
        outcome: Outcome,
    },
    /// A handler had an effect.
    Effect {
        /// The name of the effect.
        name: Arc<str>,
        /// The job.
        id: Arc<str>,
    },
    /// A dead letter is put back: its job may run again.
    Redriven {
        /// The job.
        id: Arc<str>,
    },
    /// A job was removed on purpose: it was cancelled, purged or cleared.
    TakenAway {
        /// The job.
        id: Arc<str>,
        /// The operation that removed it.
        why: &'static str,
    },
    /// A storage call failed, or was slow to fail.
    Fault {
        /// The operation.
        operation: Operation,
        /// The queue or blob.
        subject: String,
        /// The fault of the call.
        fault: Fault,
    },
    /// A process was killed, frozen, resumed or started, or an account failed.
    Incident(String),
    /// A note of the scenario.
    Noted(String),
}

impl Fact {
    /// Returns the id of the job that the fact concerns; `None` if it concerns no single job.
    pub fn job(&self) -> Option<&Arc<str>> {
        match self {
            Self::SendBegan { id, .. }
            | Self::Sent { id, .. }
            | Self::RunBegan { id, .. }
            | Self::RunEnded { id, .. }
            | Self::Settled { id, .. }
            | Self::Effect { id, .. }
            | Self::Redriven { id }
            | Self::TakenAway { id, .. } => Some(id),
            Self::Fault { .. } | Self::Incident(_) | Self::Noted(_) => None,
        }
    }
}

/// A fact, with its time and its process.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its position in the order of all facts.
    pub number: usize,
    /// The time since the world began.
    pub at: Duration,
    /// The process that it concerns.
    pub node: Arc<str>,
    /// The fact.
    pub fact: Fact,
}

/// The history of a world.
#[derive(Debug)]
pub(super) struct Ledger {
    begun: Instant,
    entries: Mutex<Vec<Entry>>,
}

impl Ledger {
    pub(super) fn new() -> Self {
        Self { begun: Instant::now(), entries: Mutex::default() }
    }

    pub(super) fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Records a fact and returns its number.
    pub(super) fn note(&self, node: &Arc<str>, fact: Fact) -> usize {
        let at = self.now();
        let mut entries = lock(&self.entries);
        let number = entries.len();
        entries.push(Entry { number, at, node: Arc::clone(node), fact });
        number
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        lock(&self.entries).clone()
    }
}
