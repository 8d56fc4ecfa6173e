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
    turn: Mutex<Turn>,
}

/// `None` is a time that has passed.
#[derive(Debug, Default)]
struct Turn {
    next: Option<Instant>,
    /// The time from which on the work takes no more than its part.
    earliest: Option<Instant>,
}

impl Pace {
    pub(crate) fn new(least: Duration) -> Self {
        Self { least, turn: Mutex::default() }
    }

    /// Returns whether the work is due. If so, the caller does it, and no other one during the least interval.
    pub(crate) fn begin(&self) -> bool {
        let mut turn = lock(&self.turn);
        let now = Instant::now();
        let is_due = turn.next.is_none_or(|next| next <= now);
        if is_due {
            let next = Some(now + self.least);
            *turn = Turn { next, earliest: next };
        }
        is_due
    }

    /// Takes note of what the work took.
    pub(crate) fn end(&self, took: Duration) {
        let (now, part) = (Instant::now(), took.saturating_mul(PART));
        *lock(&self.turn) = Turn { next: Some(now + self.least.max(part)), earliest: Some(now + part) };
    }

    /// Makes the work due before the least interval has passed, though not more often than its part of the time allows.
    pub(crate) fn hasten(&self) {
        let mut turn = lock(&self.turn);
        turn.next = turn.earliest;
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

    #[tokio::test(start_paused = true)]
    async fn hastened_work_takes_no_more_than_its_part() {
        let pace = Pace::new(Duration::from_secs(60));
        pace.hasten();
        assert!(pace.begin());
        pace.hasten();
        assert!(!pace.begin(), "it is under way");
        pace.end(Duration::from_secs(1));
        pace.hasten();
        tokio::time::advance(Duration::from_secs(19)).await;
        assert!(!pace.begin());
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(pace.begin());
    }
}
