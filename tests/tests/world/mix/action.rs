//! The actions of a world, as data.

use std::time::Duration;

use jobqueue::storage::Operation;
use jobqueue_testing::world::Incident;

use super::spec::{Fan, Spec};

/// The kind of an action, with its parameters.
#[derive(Debug, Clone)]
pub(super) enum ActionKind {
    Send(Spec),
    SendAll(Vec<Spec>),
    Unique {
        spec: Spec,
        window: Duration,
        /// True if two senders send it at once, under one id.
        twice: bool,
    },
    /// Cancels the last message of this sender.
    Cancel,
    CancelUnique {
        key: String,
    },
    Batch(Fan),
    /// Sends a job that claims to belong to a batch.
    Forge {
        id: String,
        batch: String,
        index: u64,
        continues: bool,
    },
    /// Sends jobs of one of two releases.
    Release {
        ids: Vec<String>,
        newer: bool,
    },
    /// Sends a job that refers to the payload of a job in another queue.
    Steal {
        id: String,
        choice: u64,
    },
    /// Redrives dead letters. If `dies_at` is set, the process dies after that many calls.
    Redrive {
        dies_at: Option<u64>,
        per_second: Option<u32>,
    },
    Purge,
    Clear,
    Sweep,
    Pause {
        time: Duration,
    },
    /// Pauses the queue of work for a time. The pause ends by itself.
    PauseFor {
        time: Duration,
    },
    /// Cancels all jobs of a key.
    CancelAll {
        key: String,
    },
    /// Redrives dead letters, beginning with a canary.
    RedriveAfterCanary,
    /// Searches the journal of ended jobs.
    Search,
    Threshold {
        attempts: u32,
    },
    KillSender {
        call: u64,
        applied: bool,
    },
    /// Kills the sender at its next call of an operation.
    KillSenderAt {
        operation: Operation,
        applied: bool,
    },
    /// Loses the request of the sender's next call of an operation: it is not performed, and not answered for
    /// a while.
    LoseRequest {
        operation: Operation,
        wait: Duration,
    },
    Incident(Incident),
}

#[derive(Debug, Clone)]
pub(super) struct Action {
    pub(super) at: Duration,
    /// The index of the sender that acts.
    pub(super) actor: usize,
    pub(super) what: ActionKind,
}
