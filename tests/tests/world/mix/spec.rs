//! The instructions to a job, and the options of its send.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The steps of a handler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Script {
    /// The time that the handler works.
    pub(super) millis: u64,
    /// The number of attempts that fail before one succeeds.
    pub(super) fail: u32,
    /// True if these attempts panic.
    pub(super) panic: bool,
    /// The number of deliveries that snooze first.
    pub(super) snooze: u32,
    /// True if the handler rejects the job.
    pub(super) reject: bool,
    /// The number of checkpoints that it saves.
    pub(super) checkpoints: u32,
    /// True if the checkpoints are large.
    pub(super) large_checkpoints: bool,
    pub(super) step: bool,
    pub(super) once: bool,
    /// The batch that it sends.
    pub(super) fan: Option<Box<Fan>>,
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fan {
    pub(super) id: String,
    pub(super) children: Vec<Script>,
    /// True if a dead child counts as ended.
    pub(super) goes_on: bool,
    /// The steps of the continuation.
    pub(super) join: Script,
}

/// One send.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    pub(super) id: String,
    pub(super) script: Script,
    /// The size of the payload in bytes.
    pub(super) bytes: usize,
    pub(super) key: Option<String>,
    pub(super) in_order: bool,
    pub(super) delay: Option<Duration>,
    pub(super) ttl: Option<Duration>,
    /// True if the send is repeated under the same id while its outcome is unknown.
    pub(super) resend: bool,
}

/// Returns the payload for an id.
pub(super) fn filling(id: &str, bytes: usize) -> String {
    format!("{id} ").chars().cycle().take(bytes).collect()
}
