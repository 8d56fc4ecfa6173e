//! Defines what a job is told to do, and what its sender asks for.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The steps of a handler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Script {
    /// The time that it works.
    pub(super) millis: u64,
    /// Attempts that fail before one succeeds.
    pub(super) fail: u32,
    /// True if they fail by a panic.
    pub(super) panic: bool,
    /// Deliveries that snooze first.
    pub(super) snooze: u32,
    /// True if it gives itself up for good.
    pub(super) reject: bool,
    /// Checkpoints that it saves on the way.
    pub(super) checkpoints: u32,
    /// True if these are large.
    pub(super) large_checkpoints: bool,
    pub(super) step: bool,
    pub(super) once: bool,
    /// The batch that it starts.
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
    /// Bytes of the payload.
    pub(super) bytes: usize,
    pub(super) key: Option<String>,
    pub(super) in_order: bool,
    pub(super) delay: Option<Duration>,
    pub(super) ttl: Option<Duration>,
    /// Sent again under the same id while the outcome is unknown.
    pub(super) resend: bool,
}

/// The payload that belongs to an id.
pub(super) fn filling(id: &str, bytes: usize) -> String {
    format!("{id} ").chars().cycle().take(bytes).collect()
}
