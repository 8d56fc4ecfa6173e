//! Pauses shards that are throttled or fail, so that they do not slow down the others.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::map::Shard;
use crate::name::QueueName;
use crate::sync::lock;
use crate::{StoreError, StoreErrorKind};

const FIRST_PAUSE: Duration = Duration::from_millis(250);
const MAX_PAUSE: Duration = Duration::from_secs(30);
const UNANSWERED_PAUSE: Duration = Duration::from_secs(20);

#[derive(Debug, Default, Clone, Copy)]
struct ShardState {
    failures: u32,
    closed_until: Option<Instant>,
    /// True if the last request was not answered in time.
    is_suspect: bool,
}

/// The recent behaviour of each shard.
#[derive(Debug, Default)]
pub(super) struct ShardHealth(Mutex<HashMap<(QueueName, Shard), ShardState>>);

impl ShardHealth {
    fn with<T>(&self, queue: &QueueName, shard: &Shard, action: impl FnOnce(&mut ShardState) -> T) -> T {
        let mut states = lock(&self.0);
        action(states.entry((queue.clone(), shard.clone())).or_default())
    }

    /// Returns the time until the shard may be asked again; `None` if it may be asked now.
    pub(super) fn closed_for(&self, queue: &QueueName, shard: &Shard) -> Option<Duration> {
        let until = self.with(queue, shard, |state| state.closed_until);
        until.map(|until| until.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero())
    }

    /// Returns the number of failures since the last answer, at least 1, of a shard that did not answer last
    /// time.
    pub(super) fn unanswered(&self, queue: &QueueName, shard: &Shard) -> Option<u32> {
        self.with(queue, shard, |state| state.is_suspect.then_some(state.failures.max(1)))
    }

    /// Records that a put without a key asks the shard. If the shard did not answer last time, gets and other
    /// puts without a key leave it alone until this one is answered, for 30 seconds at most.
    pub(super) fn probed(&self, queue: &QueueName, shard: &Shard) {
        let now = Instant::now();
        self.with(queue, shard, |state| {
            if state.is_suspect && state.closed_until.is_none_or(|until| until <= now) {
                state.closed_until = Some(now + MAX_PAUSE);
            }
        });
    }

    /// Records that a get, or a put without a key, was answered.
    pub(super) fn answered(&self, queue: &QueueName, shard: &Shard) {
        self.with(queue, shard, |state| *state = ShardState::default());
    }

    /// Records a failure of the shard. A shard that may serve later is paused: for the time that it asks for,
    /// or else from 250 ms doubling to 30 s, and at least 20 s if it did not answer.
    pub(super) fn failed(&self, queue: &QueueName, shard: &Shard, error: &StoreError) {
        // The other shards hide the failure from the caller, so only the log shows it. A missing shard is
        // retired, or is created again.
        if error.kind() != StoreErrorKind::QueueNotFound {
            let Shard { generation, number, account } = shard;
            crate::log::warn!(%queue, account, shard = number, generation, %error, "a request to a shard failed");
        }
        if !error.is_retryable() && error.kind() != StoreErrorKind::Stopped {
            return;
        }
        self.with(queue, shard, |state| {
            let own = FIRST_PAUSE.saturating_mul(1 << state.failures.min(10)).min(MAX_PAUSE);
            // A shard that does not answer has already delayed the others.
            let own = if error.kind() == StoreErrorKind::Timeout { own.max(UNANSWERED_PAUSE) } else { own };
            state.failures += 1;
            state.is_suspect = error.kind() == StoreErrorKind::Timeout;
            state.closed_until = Some(Instant::now() + error.retry_after().unwrap_or(own).min(MAX_PAUSE));
        });
    }
}
