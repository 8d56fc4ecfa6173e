//! The ledger: all events of a world, in order.
//!
//! A job is named by its id. If it has a source other than the framework's, source and id together name it:
//! `/shop 17`.

use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use jobqueue::Outcome;
use jobqueue::storage::Operation;
use jobqueue_storage::sync::lock;
use tokio::time::Instant;

use super::disturbance::Disturbance;
use crate::faults::Fault;

/// Returns the name of a job in the history: its id, prefixed by the source unless the framework made the
/// source.
pub(super) fn subject(source: &str, id: &str) -> Arc<str> {
    if source.starts_with("/jobqueue/") { id.into() } else { format!("{source} {id}").into() }
}

/// The answer to a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The message is stored.
    Acknowledged,
    /// The message is certainly not stored.
    Refused,
    /// The message may be stored.
    Unknown,
}

/// The end of a handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunEnd {
    /// The handler returned `Ok`.
    Done,
    /// The handler returned an error that counts as an attempt, or panicked.
    Failed,
    /// The handler returned the error of a storage outage, which does not count as an attempt.
    Outage,
    /// The handler asked to run again later, without counting an attempt.
    Snoozed,
    /// The handler was dropped before it returned.
    Dropped,
}

/// An event in a world. The [entry](Entry) adds the process and the job.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Fact {
    /// A send began.
    SendBegan {
        /// The queue of the send.
        queue: Arc<str>,
    },
    /// A send returned.
    Sent {
        /// The answer to the send.
        verdict: Verdict,
        /// The earliest time at which the message may expire.
        expires: Option<Duration>,
    },
    /// A process, that is, a sender or the library itself, starts to put a message of a job into a queue.
    PutBegan {
        /// The queue as the storage knows it: a shard, or a dead-letter queue.
        queue: Arc<str>,
    },
    /// The storage answered a put.
    Put {
        /// The queue as the storage knows it.
        queue: Arc<str>,
        /// The answer to the put.
        verdict: Verdict,
        /// The earliest time at which the message may expire.
        expires: Option<Duration>,
    },
    /// A process received a message of a job.
    Received {
        /// The queue as the storage knows it.
        queue: Arc<str>,
        /// The time at which the message was inserted. It distinguishes the messages of a job.
        inserted: SystemTime,
        /// The dequeue count of the message.
        delivery: u32,
        /// The number of the first entry after the process asked for messages. The lease began then at the
        /// earliest.
        asked: usize,
    },
    /// The storage acknowledged the deletion of a message of a job.
    Deleted {
        /// The queue as the storage knows it.
        queue: Arc<str>,
    },
    /// A change of a message of a job failed, was answered late, or was given up by its process.
    CallFailed {
        /// The operation.
        operation: Operation,
        /// The message: its account, queue and id.
        message: Arc<str>,
        /// The number of the first entry after the process asked for the change.
        asked: usize,
        /// The way in which it failed.
        how: &'static str,
    },
    /// The storage refused a change of a message of a job, because the message is gone or the process does
    /// not have it. The refusal explains nothing: an earlier event must explain why the process does not have
    /// the message.
    CallRefused {
        /// The operation.
        operation: Operation,
    },
    /// The storage acknowledged a change of a message of a job in time.
    Changed {
        /// The operation.
        operation: Operation,
        /// The message: its account, queue and id.
        message: Arc<str>,
    },
    /// A handler started.
    RunBegan {
        /// The number of the run in this world.
        run: u64,
        /// The time at which its message was inserted.
        inserted: SystemTime,
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
        /// The end.
        end: RunEnd,
    },
    /// A worker reported the outcome of a delivery.
    Settled {
        /// The time at which the message was inserted; `None` if it could not be read.
        inserted: Option<SystemTime>,
        /// The dequeue count.
        delivery: u32,
        /// The outcome.
        outcome: Outcome,
    },
    /// A handler had an effect.
    Effect {
        /// The name of the effect.
        name: Arc<str>,
        /// The time at which the message of the run was inserted.
        inserted: SystemTime,
        /// The dequeue count of that message.
        delivery: u32,
    },
    /// A dead letter is put back, so its job may run again.
    Redriven,
    /// A job was removed on purpose, that is, cancelled, purged or cleared, or may have been.
    TakenAway {
        /// The operation that removed the job.
        why: &'static str,
    },
    /// A removal certainly did not happen: one earlier [`TakenAway`](Self::TakenAway) of the job does not
    /// count.
    Kept,
    /// A storage call failed, possibly after a delay.
    Fault {
        /// The operation.
        operation: Operation,
        /// The queue or blob.
        subject: String,
        /// The fault of the call.
        fault: Fault,
    },
    /// A process, its worker or the storage was disturbed.
    Incident(Disturbance),
    /// A process tries to set the number of attempts of a queue. Its success is not recorded.
    Threshold {
        /// The queue.
        queue: Arc<str>,
        /// The number of attempts.
        attempts: u32,
    },
    /// A note of the scenario.
    Noted(String),
}

/// A fact with its time, its process and its job.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The position in the order of all facts.
    pub number: usize,
    /// The time since the world began.
    pub at: Duration,
    /// The process that the fact concerns.
    pub node: Arc<str>,
    /// The job that the fact concerns, or `None` if it concerns no single job.
    pub job: Option<Arc<str>>,
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

    /// Adds a fact that concerns no single job, and returns its number.
    pub(super) fn note(&self, node: &Arc<str>, fact: Fact) -> usize {
        self.add(node, None, fact)
    }

    pub(super) fn note_of(&self, node: &Arc<str>, job: &Arc<str>, fact: Fact) {
        self.add(node, Some(Arc::clone(job)), fact);
    }

    pub(super) fn add(&self, node: &Arc<str>, job: Option<Arc<str>>, fact: Fact) -> usize {
        let at = self.now();
        let mut entries = lock(&self.entries);
        let number = entries.len();
        entries.push(Entry { number, at, node: Arc::clone(node), job, fact });
        number
    }

    /// Returns the number of the next fact.
    pub(super) fn len(&self) -> usize {
        lock(&self.entries).len()
    }

    pub(super) fn entries(&self) -> Vec<Entry> {
        lock(&self.entries).clone()
    }
}
