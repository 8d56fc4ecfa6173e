//! Measures a storage's load by its answers, and returns the waiting time for callers that can wait.
//!
//! Polling and sending can wait; renewing and settling leases cannot.
//! [`Stores::measured`](super::Stores::measured) passes on every answer of the queues. Callers that can wait
//! call [`Throttle::until_ready`] before a request. The module does not know workers.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use super::{Backoff, StoreError};
use crate::runtime::Runtime;
use crate::sync::lock;

/// The pause if the storage names none: from a second, doubling up to a minute.
const THROTTLE_BACKOFF: Backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(60));

/// The shortest pause, whatever the storage asks for.
const MIN_PAUSE: Duration = Duration::from_millis(100);

/// The load of a storage, shared by all its users in this process.
#[derive(Debug, Default)]
pub struct Throttle {
    state: Mutex<Pause>,
    runtime: Runtime,
}

#[derive(Debug, Default)]
struct Pause {
    /// The time until which callers that can wait do so.
    until: Option<Instant>,
    /// The number of times the storage has throttled again after a pause.
    repeated: u32,
}

impl Throttle {
    /// Returns the load of a storage that has not answered yet.
    pub fn new(runtime: Runtime) -> Self {
        Self { runtime, ..Self::default() }
    }

    /// Returns the time for which callers that can wait should still wait.
    #[inline]
    pub fn left(&self) -> Duration {
        let state = lock(&self.state);
        state.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Waits until the storage may receive requests that can wait. The waits are jittered, so that callers do
    /// not all continue at the same moment.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn until_ready(&self) {
        loop {
            let left = self.left();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(self.runtime.jitter(left, 1.0..=1.2)).await;
        }
    }

    pub(super) fn note<T>(&self, answer: &Result<T, StoreError>, may_wait: bool) {
        match answer {
            Err(error) if error.is_throttled() && !error.is_of_part() => self.throttled(error.retry_after()),
            // A successful renewal says nothing about polling.
            Ok(_) if may_wait => lock(&self.state).repeated = 0,
            _ => {}
        }
    }

    fn throttled(&self, asked: Option<Duration>) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        // Concurrent requests that are throttled count once.
        if state.until.is_none_or(|until| until <= now) {
            state.repeated = state.repeated.saturating_add(1);
        } else if asked.is_none() {
            return;
        }
        let wait =
            asked.unwrap_or_else(|| THROTTLE_BACKOFF.delay(state.repeated, &self.runtime)).max(MIN_PAUSE);
        state.until = state.until.max(Some(now + wait));
        crate::log::warn!(
            ?wait,
            "the storage throttles requests; polling and sending wait, renewals of leases do not"
        );
    }
}
