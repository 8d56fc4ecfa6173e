//! The rate at which messages that cannot run go to the dead-letter queue.
//!
//! A flood of such messages usually comes from a single mistake: a producer that uses the wrong queue, or a
//! release that cannot read the messages. The flood must neither displace good messages nor empty a queue
//! before an operator notices. This module knows nothing of messages.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::sync::lock;

/// The minimum put-back: services count in seconds, and the message should not come back at once.
const MIN_PUT_BACK: Duration = Duration::from_secs(1);

/// The maximum put-back. A message that comes back too early is put back again.
const MAX_PUT_BACK: Duration = Duration::from_secs(3600);

/// The rate limit of a worker, over all its queues.
#[derive(Debug)]
pub(in crate::worker) struct Rejections {
    /// The rate per second; `None` for no limit.
    per_second: Option<u32>,
    lifted: AtomicBool,
    state: Mutex<Permits>,
}

#[derive(Debug)]
struct Permits {
    /// The number of messages that may be dead-lettered now, up to the rate of one second.
    permits: f64,
    counted: Instant,
    /// The time at which the last put-back message comes back.
    last_return: Instant,
}

impl Rejections {
    /// Returns a limiter. A rate of zero counts as one per second.
    pub(in crate::worker) fn new(per_second: Option<u32>) -> Self {
        let (per_second, now) = (per_second.map(|rate| rate.max(1)), Instant::now());
        let permits = per_second.unwrap_or(0).into();
        Self {
            per_second,
            lifted: AtomicBool::new(false),
            state: Mutex::new(Permits { permits, counted: now, last_return: now }),
        }
    }

    pub(in crate::worker) fn lift(&self) {
        self.lifted.store(true, Ordering::Relaxed);
    }

    /// Takes a permit to dead-letter one message now. If none is left, returns how long to put the message
    /// back: at most `longest`. Put-back messages come back one after the other, at the rate.
    pub(in crate::worker) fn permit(&self, longest: Duration) -> Result<(), Duration> {
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
        let earliest = state.last_return.max(now + MIN_PUT_BACK);
        let latest = now + MAX_PUT_BACK;
        let returns = (earliest + Duration::from_secs_f64(1.0 / rate)).min(latest);
        let wait = returns - now;
        // A message that comes back before its turn has none: it would take another one each time.
        if wait > longest {
            return Err(longest);
        }
        state.last_return = returns;
        Err(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn rejections_beyond_one_second_of_the_rate_wait() {
        let rejections = Rejections::new(Some(10));
        assert!((0..10).all(|_| rejections.permit(MAX_PUT_BACK).is_ok()));
        let waits: Vec<_> = (0..20).map(|_| rejections.permit(MAX_PUT_BACK).unwrap_err()).collect();
        assert!(waits.is_sorted() && waits[0] >= MIN_PUT_BACK);
        assert!(waits[19] >= Duration::from_millis(2_900) && waits[19] <= Duration::from_millis(3_100));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!((0..20).filter(|_| rejections.permit(MAX_PUT_BACK).is_ok()).count(), 5);
        rejections.lift();
        assert!((0..100).all(|_| rejections.permit(MAX_PUT_BACK).is_ok()));
    }

    #[tokio::test(start_paused = true)]
    async fn no_rejection_waits_for_longer_than_an_hour() {
        let rejections = Rejections::new(Some(0));
        let waits: Vec<_> = (0..10_000).filter_map(|_| rejections.permit(Duration::MAX).err()).collect();
        assert!(waits.iter().all(|wait| *wait <= MAX_PUT_BACK));
        assert!(Rejections::new(None).permit(MAX_PUT_BACK).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn messages_that_come_back_before_their_turn_hold_up_no_others() {
        let rejections = Rejections::new(Some(1));
        let limit = Duration::from_secs(59);
        let waits: Vec<_> = (0..1_000).filter_map(|_| rejections.permit(limit).err()).collect();
        assert_eq!(waits.len(), 999);
        assert_eq!(waits.iter().max(), Some(&limit));
        assert!(rejections.permit(MAX_PUT_BACK).unwrap_err() <= Duration::from_secs(61));
    }
}
