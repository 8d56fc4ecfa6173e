//! The messages and leases of the model, and requests that are made again.

use std::time::SystemTime;

use jobqueue::storage::{MessageRef, StoreError};

/// A message that was put and has not ended.
#[derive(Debug)]
pub(super) struct Message {
    /// The texts that it may have: several after a change without an answer.
    pub(super) texts: Vec<String>,
    pub(super) deliveries: u32,
    pub(super) not_before: Option<SystemTime>,
    /// The end of the last delay that was asked for, with or without an answer: until then a peek may not
    /// show the message.
    pub(super) hidden_until: SystemTime,
    /// True if it was completed or dead-lettered without an answer.
    pub(super) may_be_gone: bool,
}

impl Message {
    pub(super) fn new(texts: Vec<String>, deliveries: u32) -> Self {
        Self { texts, deliveries, not_before: None, hidden_until: SystemTime::UNIX_EPOCH, may_be_gone: false }
    }
}

/// A message that a process has leased.
#[derive(Debug, Clone)]
pub(super) struct Lease {
    pub(super) process: usize,
    pub(super) message: MessageRef,
    pub(super) text: String,
    /// True once the session may be lost.
    pub(super) may_be_lost: bool,
}

/// The answer to a change under a lease.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Done,
    Lost,
    /// Lost, after a request that got no answer.
    Unknown,
}

/// Asks again when a link has ended under the request. Also returns whether a request got no answer.
pub(super) async fn again<T>(ask: impl AsyncFn() -> Result<T, StoreError>) -> (Result<T, StoreError>, bool) {
    let (mut answer, mut was_in_doubt) = (ask().await, false);
    for _ in 0..8 {
        match &answer {
            Err(error) if error.is_retryable() => {
                was_in_doubt |= error.is_ambiguous();
                answer = ask().await;
            }
            _ => break,
        }
    }
    (answer, was_in_doubt)
}
