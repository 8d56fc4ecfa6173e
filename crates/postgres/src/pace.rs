//! Spaces work that is repeated for safety, so that it takes a small part of the time, whatever it costs.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use jobqueue_storage::sync::lock;

/// A twentieth of the time at most.
const PART: u32 = 20;

/// Says when to repeat work: after a least interval, and after a multiple of what it took the last time.
#[derive(Debug)]
pub(crate) struct Pace {
    least: Duration,
    next: Mutex<Option<Instant>>,
}

impl Pace {
    pub(crate) fn new(least: Duration) -> Self {
        Self { least, next: Mutex::default() }
    }

    /// Returns whether the work is due. If so, the caller does it, and no other one meanwhile.
    pub(crate) fn begin(&self) -> bool {
        let mut next = lock(&self.next);
        let now = Instant::now();
        let is_due = next.is_none_or(|next| next <= now);
        if is_due {
            *next = Some(now + self.least);
        }
        is_due
    }

    /// Takes note of what the work took.
    pub(crate) fn end(&self, took: Duration) {
        *lock(&self.next) = Some(Instant::now() + self.least.max(took.saturating_mul(PART)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn expensive_work_is_done_more_rarely() {
        let pace = Pace::new(Duration::from_secs(1));
        assert!(pace.begin());
        assert!(!pace.begin(), "one at a time");
        pace.end(Duration::from_secs(3));
        tokio::time::advance(Duration::from_secs(59)).await;
        assert!(!pace.begin());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(pace.begin());
    }
}
