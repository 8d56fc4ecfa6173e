//! The messages of a world.

use jobqueue::QueueMessage;
use serde::{Deserialize, Serialize};

use super::spec::Script;

/// The message of most jobs.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "work", kind = "work", lease = "20s", poison_threshold = 3)]
#[message(backoff(base = "2s", max = "20s"))]
pub(super) struct Work {
    pub(super) id: String,
    pub(super) script: Script,
    pub(super) filling: String,
}

/// A child of a batch.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "parts", kind = "part", lease = "20s", poison_threshold = 3)]
#[message(backoff(base = "2s", max = "20s"))]
pub(super) struct Part {
    pub(super) id: String,
    pub(super) script: Script,
}

/// The continuation of a batch.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "parts", kind = "join", lease = "20s", poison_threshold = 5)]
#[message(backoff(base = "2s", max = "20s"))]
pub(super) struct Join {
    pub(super) id: String,
    pub(super) script: Script,
}

/// The message of a schedule.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "parts", kind = "tick", lease = "20s", poison_threshold = 3)]
pub(super) struct Tick {}

/// A message that is never sent.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "unused", kind = "unused")]
pub(super) struct Unused {}

/// The message of the older of two releases.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "releases", kind = "release", lease = "20s", poison_threshold = 3)]
pub(super) struct Former {
    pub(super) id: String,
}

/// The same message in the newer release.
#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "releases", kind = "release", version = 2, upgrade_from = Former)]
#[message(lease = "20s", poison_threshold = 7, backoff(base = "2s", max = "20s"))]
pub(super) struct Newer {
    pub(super) id: String,
    /// 1 if the message was sent by the newer release.
    pub(super) new: u32,
}

impl From<Former> for Newer {
    fn from(former: Former) -> Self {
        Self { id: former.id, new: 0 }
    }
}
