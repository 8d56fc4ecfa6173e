//! A job that has ended, as operators see it.

use serde::{Deserialize, Serialize};

use super::chunk::{OUTCOMES, time};
use super::segment::{Chunk, Entry};
use crate::clock::rfc3339;
use crate::trace::TraceContext;

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
    /// Returns the record of an entry of this chunk; `None` if its origin is not in the chunk.
    pub(super) fn of(chunk: &Chunk<'_>, entry: &Entry<'_>) -> Option<Self> {
        let origin = chunk.origins.get(entry.origin)?;
        let (trace, span, flags) = entry.trace;
        let inserted = time(entry.inserted.saturating_mul(1000));
        Some(Self {
            queue: origin.queue.to_owned(),
            id: entry.id.to_string(),
            source: origin.source.to_owned(),
            kind: origin.kind.to_owned(),
            outcome: OUTCOMES.get(entry.outcome).copied()?.to_owned(),
            reason: entry.reason.map(str::to_owned),
            attempt: entry.attempt,
            inserted: rfc3339(inserted).unwrap_or_default(),
            ended: rfc3339(time(entry.ended)).unwrap_or_default(),
            run_seconds: entry.run_millis as f64 / 1e3,
            error: entry.error.map(str::to_owned),
            worker: chunk.worker.to_owned(),
            trace: TraceContext::new(trace, span, flags).map(|trace| trace.traceparent()),
        })
    }
}
