//! The script of a job, and the options of its send.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// The steps of a handler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Script {
    /// The time for which the handler works.
    pub(super) millis: u64,
    /// The number of attempts that fail before one succeeds.
    pub(super) fail: u32,
    /// True if these attempts panic instead of returning an error.
    pub(super) panic: bool,
    /// The number of first deliveries that snooze.
    pub(super) snooze: u32,
    /// True if the handler rejects the job.
    pub(super) reject: bool,
    /// The number of checkpoints that the handler saves.
    pub(super) checkpoints: u32,
    /// True if the checkpoints are large.
    pub(super) large_checkpoints: bool,
    pub(super) step: bool,
    pub(super) once: bool,
    /// The batch that the handler sends.
    pub(super) fan: Option<Box<Fan>>,
    /// True if the handler starts the batch in a durable step, before it can fail.
    pub(super) fan_in_step: bool,
}

/// A batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fan {
    pub(super) id: String,
    pub(super) children: Vec<Script>,
    /// The options of the children, in their order.
    #[serde(default)]
    pub(super) options: Vec<PartOptions>,
    /// True if the batch is interrupted after its children are sent, and begun again with fewer children,
    /// which must be refused.
    pub(super) interrupted: bool,
    /// True if a dead child counts as ended.
    pub(super) goes_on: bool,
    /// The steps of the continuation.
    pub(super) join: Script,
}

/// The options with which a child of a batch is sent.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PartOptions {
    pub(super) delay: Option<Duration>,
    /// The key of a child in order.
    pub(super) in_order: Option<String>,
    #[serde(default)]
    pub(super) ttl: Option<Duration>,
}

impl Fan {
    /// Returns the options of a child.
    pub(super) fn options_of(&self, index: usize) -> PartOptions {
        self.options.get(index).cloned().unwrap_or_default()
    }
}

/// A send.
#[derive(Debug, Clone)]
pub(super) struct Spec {
    /// The name of the job in the history: its id, prefixed by the source if it has its own.
    pub(super) id: String,
    pub(super) script: Script,
    /// The size of the payload in bytes.
    pub(super) bytes: usize,
    /// The size of a header in bytes.
    pub(super) header: usize,
    pub(super) key: Option<String>,
    pub(super) in_order: bool,
    pub(super) delay: Option<Duration>,
    pub(super) ttl: Option<Duration>,
    /// True if the send is repeated under the same id while its outcome is unknown.
    pub(super) resend: bool,
}

impl Spec {
    /// Returns the source, if the job has its own, and the id.
    pub(super) fn identity(&self) -> (Option<&str>, &str) {
        match self.id.split_once(' ') {
            Some((source, id)) => (Some(source), id),
            None => (None, &self.id),
        }
    }
}

/// Returns the payload for an id.
pub(super) fn filling(id: &str, bytes: usize) -> String {
    format!("{id} ").chars().cycle().take(bytes).collect()
}
