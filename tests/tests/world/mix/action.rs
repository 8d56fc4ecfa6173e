//! The actions of a world, as data.

use std::time::Duration;

use jobqueue::storage::Operation;
use jobqueue_testing::world::Incident;

use super::spec::{Fan, Spec};

/// One action.
#[derive(Debug, Clone)]
pub(super) enum ActionKind {
    Send(Spec),
    SendAll(Vec<Spec>),
    Unique {
        spec: Spec,
        window: Duration,
        /// True if it is sent by two at once, under one id.
        twice: bool,
    },
    /// Cancels the last message that this sender sent.
    Cancel,
    CancelUnique {
        key: String,
    },
    Batch(Fan),
    /// Sends a job that names a batch to which it does not belong.
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
    /// Sends a job that refers to the payload of another queue.
    Steal {
        id: String,
        choice: u64,
    },
    /// Puts dead letters back; its process dies at this call, if at one.
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
    /// Pauses the queue of work for a time, which ends by itself.
    PauseFor {
        time: Duration,
    },
    /// Cancels all jobs of a key.
    CancelAll {
        key: String,
    },
    /// Puts dead letters back, one of them first.
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
    /// The sender's next call of an operation is not answered for a while, and not performed.
    LoseRequest {
        operation: Operation,
        wait: Duration,
    },
    Incident(Incident),
}

#[derive(Debug, Clone)]
pub(super) struct Action {
    pub(super) at: Duration,
    /// The sender of the action.
    pub(super) actor: usize,
    pub(super) what: ActionKind,
}
