//! A line of the journal.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::clock::rfc3339;
use crate::job::JobInfo;
use crate::job::outcome::{Outcome, printable};

/// The most characters of an error in the journal.
const MAX_ERROR: usize = 500;

/// A job that has ended. Times are RFC 3339, by the worker's clock unless said otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HistoryRecord {
    /// The queue.
    pub queue: String,
    /// The job's id.
    pub id: String,
    /// The sender.
    pub source: String,
    /// The kind.
    pub kind: String,
    /// The outcome: `completed`, `completed_uncertain` or `dead_lettered`.
    pub outcome: String,
    /// The reason, of a dead letter.
    #[serde(default)]
    pub reason: Option<String>,
    /// The number of the last attempt.
    pub attempt: u32,
    /// The time of insertion, by the storage's clock.
    pub inserted: String,
    /// The time of the end.
    pub ended: String,
    /// The seconds for which the handler ran in the last attempt.
    pub run_seconds: f64,
    /// The error with its causes: at most 500 characters.
    #[serde(default)]
    pub error: Option<String>,
    /// The name of the worker.
    pub worker: String,
    /// The trace: a W3C `traceparent`.
    #[serde(default)]
    pub trace: Option<String>,
}

impl HistoryRecord {
    /// Returns the line of a delivery with which its job has ended; `None` if the job goes on.
    pub(crate) fn of(
        job: &JobInfo,
        outcome: &Outcome,
        (ran, now): (Duration, SystemTime),
        error: Option<&str>,
        worker: &str,
    ) -> Option<Self> {
        let reason = match outcome {
            Outcome::Completed | Outcome::CompletedUncertain => None,
            Outcome::DeadLettered(reason) => Some(reason.to_string()),
            _ => return None,
        };
        Some(Self {
            queue: job.queue.to_string(),
            id: job.id.to_string(),
            source: job.source.to_string(),
            kind: job.kind.to_string(),
            outcome: outcome.name().to_owned(),
            reason,
            attempt: job.attempt,
            inserted: rfc3339(job.inserted).unwrap_or_default(),
            ended: rfc3339(now).unwrap_or_default(),
            run_seconds: (ran.as_secs_f64() * 1e3).round() / 1e3,
            error: error.map(|error| printable(error, MAX_ERROR)),
            worker: worker.to_owned(),
            trace: Some(job.trace.traceparent()),
        })
    }
}
