//! What is known about a job besides its message.

pub mod outcome;
pub mod retry;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use crate::name::QueueName;
use crate::trace::TraceContext;

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
///     // The same id at every delivery: a card is charged once, however often the message comes.
///     Ok(charge_card(charge.cents, &info.id).await?)
/// }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobInfo {
    /// The job's id: made by the sender, the same at every delivery. Make effects idempotent by it.
    pub id: Arc<str>,
    /// The kind as it stands in the message.
    pub kind: Arc<str>,
    /// The version as it stands in the message.
    pub version: u32,
    /// The queue it was received from.
    pub queue: QueueName,
    /// Who sent it: the event's `source`.
    pub source: Arc<str>,
    /// What it is about: the value of the field marked `key`, or what the sender gave.
    pub key: Option<Arc<str>>,
    /// The number of this attempt, from 1. Snoozes, shutdowns and lost answers do not count.
    pub attempt: u32,
    /// The attempt after whose failure the message is dead-lettered.
    pub max_attempts: u32,
    /// The number of times that the message was dequeued, this time included. It begins anew when the job is redriven; for a number
    /// that only grows see [`Context::fence`](crate::Context::fence).
    pub dequeue_count: u32,
    /// When it was sent, as the event says (RFC 3339).
    pub sent: Option<Arc<str>>,
    /// When it was inserted, by the storage's clock.
    pub inserted: SystemTime,
    /// When it vanishes; `None` is never.
    pub expires: Option<SystemTime>,
    /// What the sender added by name.
    pub headers: BTreeMap<String, String>,
    /// The trace this delivery belongs to.
    pub trace: TraceContext,
}
