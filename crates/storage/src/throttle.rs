//! Measures a storage's load by its answers, and tells callers that can wait how long to wait.
//!
//! Renewing and settling leases cannot wait; polling and sending can. [`Instrumented`](super::instrumented::Instrumented)
//! reads every answer of the queues. Callers that can wait call [`Throttle::until_ready`] before they send. The module knows nothing of
//! workers.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::StoreError;
use crate::entropy;
use crate::job::retry::Backoff;
use crate::sync::lock;

/// The pause when the storage names none: from a second doubling to a minute.
const BACKOFF: Backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(60));

/// The shortest pause, and the longest that the storage may ask for.
const BOUNDS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(300));

/// The load of one storage, shared by all its users in this process.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    state: Mutex<State>,
    /// True if the storage is sharded. A throttled request for a single message then says nothing about the other
    /// shards; a throttled get or put has tried all of them.
    of_shards: bool,
}

#[derive(Debug, Default)]
struct State {
    /// The time until which callers that can wait do so.
    until: Option<Instant>,
    /// The number of times the storage has throttled again after a pause.
    repeated: u32,
}

impl Throttle {
    /// Returns the load of a storage, given what its queues say of [shards](super::QueueStore::throttles_by_shard).
    pub(super) fn new(of_shards: bool) -> Self {
        Self { of_shards, ..Self::default() }
    }

    /// Returns the time for which callers that can wait should still wait.
    pub(crate) fn left(&self) -> Duration {
        let state = lock(&self.state);
        state.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Waits until the storage may receive requests that can wait. Waiting callers do not all continue at the same
    /// moment.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub(crate) async fn until_ready(&self) {
        loop {
            let left = self.left();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(entropy::jitter(left, 1.0..1.2)).await;
        }
    }

    pub(super) fn note<T>(&self, answer: &Result<T, StoreError>, may_wait: bool) {
        match answer {
            Err(error) if error.is_throttled() && (may_wait || !self.of_shards) => {
                self.throttled(error.retry_after())
            }
            // A successful renewal says nothing about polling.
            Ok(_) if may_wait => lock(&self.state).repeated = 0,
            _ => {}
        }
    }

    fn throttled(&self, asked: Option<Duration>) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        // Requests that ran at the same time count as one occasion.
        if state.until.is_none_or(|until| until <= now) {
            state.repeated = state.repeated.saturating_add(1);
        } else if asked.is_none() {
            return;
        }
        let wait = asked.unwrap_or_else(|| BACKOFF.delay(state.repeated)).clamp(BOUNDS.0, BOUNDS.1);
        state.until = state.until.max(Some(now + wait));
        tracing::warn!(?wait, "the storage asks to slow down; polling and sending wait, leases are kept");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::StoreErrorKind;

    fn after(throttle: &Throttle, may_wait: bool) -> Duration {
        let throttled = StoreError::new(StoreErrorKind::Throttled, "delete message", "work");
        throttle.note::<()>(&Err(throttled), may_wait);
        throttle.left()
    }

    // F86
    #[tokio::test(start_paused = true)]
    async fn refused_message_on_one_shard_throttles_no_other() {
        let (one, sharded) = (Throttle::new(false), Throttle::new(true));
        assert!(!after(&one, false).is_zero());
        assert!(after(&sharded, false).is_zero());
        // A failed get or put has tried all shards.
        assert!(!after(&sharded, true).is_zero());
    }
}
