//! The delay before the next attempt of a job, and the growth of every other repeated wait.

use std::time::Duration;

use super::MAX_VISIBILITY;
use crate::runtime::Runtime;

/// Exponential back-off with full jitter. Before attempt n + 1 a random time between zero and
/// `min(max, base × 2^(n−1))` passes, so that jobs that failed together are not retried together.
///
/// ```
/// use jobqueue::Backoff;
/// use std::time::Duration;
///
/// const GENTLE: Backoff = Backoff::exponential(Duration::from_secs(5), Duration::from_secs(600));
/// assert_eq!(GENTLE.ceiling(1), Duration::from_secs(5));
/// assert_eq!(GENTLE.ceiling(3), Duration::from_secs(20));
/// assert_eq!(GENTLE.ceiling(60), Duration::from_secs(600));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Backoff {
    base: Duration,
    max: Duration,
}

impl Backoff {
    /// A back-off of 1 second, doubling up to 10 minutes.
    pub const DEFAULT: Self = Self::exponential(Duration::from_secs(1), Duration::from_secs(600));

    /// A back-off without delay: the next attempt may run at once.
    pub const NONE: Self = Self::exponential(Duration::ZERO, Duration::ZERO);

    /// Returns a back-off that begins at `base` and doubles up to `max`; no delay is longer than 7 days.
    pub const fn exponential(base: Duration, max: Duration) -> Self {
        Self { base, max }
    }

    /// Returns the longest delay after failed attempt number `attempt` (1 is the first).
    pub fn ceiling(&self, attempt: u32) -> Duration {
        let doublings = attempt.saturating_sub(1).min(31);
        self.base.saturating_mul(1 << doublings).min(self.max).min(MAX_VISIBILITY)
    }

    /// Returns a random delay after failed attempt number `attempt`, at most [`ceiling`](Self::ceiling).
    pub fn delay(&self, attempt: u32, runtime: &Runtime) -> Duration {
        runtime.jitter(self.ceiling(attempt), 0.0..=1.0)
    }
}

impl Default for Backoff {
    fn default() -> Self {
        Self::DEFAULT
    }
}
