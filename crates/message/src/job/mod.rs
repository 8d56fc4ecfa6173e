//! Information about a job besides its message: its id and attempt, the outcome of a delivery, and the delay
//! between attempts.

mod outcome;
mod reason;
mod trace_context;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

pub use jobqueue_storage::Backoff;
use jobqueue_storage::QueueName;
pub use outcome::{BoxError, JobError, Outcome, Verdict};
pub use reason::Reason;
pub use trace_context::TraceContext;

/// A delivery of a job as the handler sees it. Also an extractor: `async fn handle(msg: M, info: JobInfo)`.
///
/// ```
/// # use jobqueue::{JobError, JobInfo, QueueMessage}; use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, QueueMessage)]
/// # #[message(queue = "charges", kind = "charge")] struct Charge { cents: u64 }
/// # async fn charge_card(_cents: u64, _idempotency_key: &str) -> Result<(), std::io::Error> { Ok(()) }
/// async fn charge(charge: Charge, info: JobInfo) -> Result<(), JobError> {
///     if info.attempt == info.max_attempts {
///         eprintln!("the last attempt of {}, sent by {}", info.id, info.source);
///     }
///     // The id is the same at every delivery: the card is charged once, however often the message is delivered.
///     Ok(charge_card(charge.cents, &info.id).await?)
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobInfo {
    /// The job's id. The sender creates it; it is the same at every delivery. Use it to make effects
    /// idempotent.
    pub id: Arc<str>,
    /// The kind in the message.
    pub kind: Arc<str>,
    /// The version in the message.
    pub version: u32,
    /// The queue from which the message was received.
    pub queue: QueueName,
    /// The sender: the event's `source`.
    pub source: Arc<str>,
    /// The key: the value of the field marked `key`, or the key that the sender set.
    pub key: Option<Arc<str>>,
    /// The number of this attempt, from 1. Snoozes, shutdowns and lost answers do not count.
    pub attempt: u32,
    /// The number of the last attempt. If it fails, the message is dead-lettered.
    pub max_attempts: u32,
    /// The number of times that the message was dequeued, including this time. It restarts when the job is
    /// redriven. `Context::fence` only grows.
    pub dequeue_count: u32,
    /// The time of sending, by the sender's clock. `None` if the event has no time.
    pub sent: Option<SystemTime>,
    /// The time of insertion, by the storage's clock.
    pub inserted: SystemTime,
    /// The time at which the message expires. `None` means never.
    pub expires: Option<SystemTime>,
    /// The sender's headers, and the headers that the framework sets for batches and FIFO groups, such as
    /// `batchid` and `inorder`.
    pub headers: BTreeMap<String, String>,
    /// The trace to which this delivery belongs.
    pub trace: TraceContext,
}
