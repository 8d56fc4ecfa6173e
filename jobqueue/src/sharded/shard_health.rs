//! Shards that asked to slow down, or failed, are left alone for a while; the others are not concerned.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::map::Shard;
use crate::name::QueueName;
use crate::storage::{StoreError, StoreErrorKind};
use crate::sync::lock;

const FIRST: Duration = Duration::from_millis(250);
const LONGEST: Duration = Duration::from_secs(30);
const UNANSWERED: Duration = Duration::from_secs(20);

#[derive(Debug, Default, Clone, Copy)]
struct State {
    failures: u32,
    closed_until: Option<Instant>,
    answered: Option<Instant>,
}

/// What is known of each shard's behaviour.
#[derive(Debug, Default)]
pub(super) struct ShardHealth(Mutex<HashMap<(QueueName, Shard), State>>);

impl ShardHealth {
    fn with<T>(&self, queue: &QueueName, shard: &Shard, action: impl FnOnce(&mut State) -> T) -> T {
        let mut states = lock(&self.0);
        action(states.entry((queue.clone(), shard.clone())).or_default())
    }

    /// In how long the shard may be asked again; `None` is now.
    pub(super) fn closed_for(&self, queue: &QueueName, shard: &Shard) -> Option<Duration> {
        let until = self.with(queue, shard, |state| state.closed_until);
        until.map(|until| until.saturating_duration_since(Instant::now())).filter(|wait| !wait.is_zero())
    }

    /// A get was answered.
    pub(super) fn answered(&self, queue: &QueueName, shard: &Shard) {
        let answered = Some(Instant::now());
        self.with(queue, shard, |state| *state = State { failures: 0, closed_until: None, answered });
    }

    /// The shard failed; one that may serve later is left alone: as long as it asks, or doubling from 250 ms to 30 s,
    /// and at least 20 s if it did not answer.
    pub(super) fn failed(&self, queue: &QueueName, shard: &Shard, error: &StoreError) {
        if !error.is_retryable() && error.kind() != StoreErrorKind::Stopped {
            return;
        }
        self.with(queue, shard, |state| {
            let own = FIRST.saturating_mul(1 << state.failures.min(10)).min(LONGEST);
            // A shard that does not answer has cost the others time already.
            let own = if error.kind() == StoreErrorKind::Timeout { own.max(UNANSWERED) } else { own };
            state.failures += 1;
            state.closed_until = Some(Instant::now() + error.retry_after().unwrap_or(own).min(LONGEST));
        });
    }

    /// How long ago a get was answered last.
    pub(super) fn polled(&self, queue: &QueueName, shard: &Shard) -> Option<Duration> {
        self.with(queue, shard, |state| state.answered).map(|at| at.elapsed())
    }
}
