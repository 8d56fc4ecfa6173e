//! Defines how fast messages that are never run go to the dead-letter queue.
//!
//! A flood of them comes from one mistake: a producer on the wrong queue, a deployment that cannot read what is there. It
//! must neither crowd out good messages nor empty a queue before anybody notices. Knows nothing of messages.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::lock;

/// The least time a message is put back for: services count in seconds, and it is not to be asked for at once again.
const LEAST: Duration = Duration::from_secs(1);

/// The longest: what comes back is put back again if it is still too early.
const LONGEST: Duration = Duration::from_secs(3600);

/// The rate of one worker, over all its queues.
#[derive(Debug)]
pub(super) struct Rejections {
    /// `None`: as fast as they come.
    per_second: Option<u32>,
    lifted: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number that may go now, up to that of one second.
    permits: f64,
    counted: Instant,
    /// The time at which the last of those that were put back is to come again.
    last_return: Instant,
}

impl Rejections {
    /// `per_second` of zero counts as one.
    pub(super) fn new(per_second: Option<u32>) -> Self {
        let (per_second, now) = (per_second.map(|rate| rate.max(1)), Instant::now());
        let permits = per_second.unwrap_or(0).into();
        Self {
            per_second,
            lifted: AtomicBool::new(false),
            state: Mutex::new(State { permits, counted: now, last_return: now }),
        }
    }

    /// Lets all go from now on.
    pub(super) fn lift(&self) {
        self.lifted.store(true, Ordering::Relaxed);
    }

    /// Returns whether a message may go now; otherwise for how long to put it back. Those that are put back return one after the
    /// other, as fast as they may go.
    pub(super) fn permit(&self) -> Result<(), Duration> {
        let Some(rate) = self.per_second.filter(|_| !self.lifted.load(Ordering::Relaxed)).map(f64::from)
        else {
            return Ok(());
        };
        let mut state = lock(&self.state);
        let now = Instant::now();
        let since = now.saturating_duration_since(state.counted);
        state.counted = now;
        state.permits = (state.permits + since.as_secs_f64() * rate).min(rate);
        if state.permits >= 1.0 {
            state.permits -= 1.0;
            return Ok(());
        }
        let earliest = state.last_return.max(now + LEAST);
        let latest = now + LONGEST;
        state.last_return = (earliest + Duration::from_secs_f64(1.0 / rate)).min(latest);
        Err(state.last_return - now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_second_of_rate_goes_at_once_the_rest_later() {
        let rejections = Rejections::new(Some(10));
        assert!((0..10).all(|_| rejections.permit().is_ok()));
        let waits: Vec<_> = (0..20).map(|_| rejections.permit().unwrap_err()).collect();
        assert!(waits.is_sorted() && waits[0] >= LEAST);
        assert!(waits[19] >= Duration::from_millis(2_900) && waits[19] <= Duration::from_millis(3_100));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!((0..20).filter(|_| rejections.permit().is_ok()).count(), 5);
        rejections.lift();
        assert!((0..100).all(|_| rejections.permit().is_ok()));
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_longer_than_an_hour() {
        let rejections = Rejections::new(Some(0));
        assert!((0..10_000).filter_map(|_| rejections.permit().err()).all(|wait| wait <= LONGEST));
        assert!(Rejections::new(None).permit().is_ok());
    }
}
