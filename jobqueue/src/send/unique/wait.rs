//! Waits for a key that another process holds.

use std::time::{Duration, SystemTime};

use tokio::time::{Instant, sleep};

use super::record::{HOLD_PERIOD, UniqueRecord};

/// The wait of a sender or a canceller.
#[derive(Debug)]
pub(super) struct KeyWait {
    give_up: Instant,
    pause: Duration,
    /// The record of the other process, and the time since when this call has seen it unchanged.
    seen: Option<(Box<UniqueRecord>, Instant)>,
}

impl KeyWait {
    pub(super) fn new() -> Self {
        Self { give_up: Instant::now() + HOLD_PERIOD * 2, pause: Duration::from_millis(20), seen: None }
    }

    /// Returns whether the owner of a pending record counts as dead: its hold has certainly expired, or this
    /// call has seen the record unchanged for the length of a hold.
    pub(super) fn is_abandoned(&self, found: &UniqueRecord, now: SystemTime) -> bool {
        let is_seen = |(known, since): &(Box<UniqueRecord>, Instant)| {
            **known == *found && since.elapsed() >= HOLD_PERIOD
        };
        found.has_certainly_expired(now) || self.seen.as_ref().is_some_and(is_seen)
    }

    /// Waits before the key is read again. `found` is the record that holds the key, if it was read. Returns
    /// false once this call has waited for too long.
    pub(super) async fn pause(&mut self, found: Option<Box<UniqueRecord>>) -> bool {
        if let Some(found) = found
            && self.seen.as_ref().is_none_or(|(known, _)| *known != found)
        {
            self.seen = Some((found, Instant::now()));
        }
        if Instant::now() >= self.give_up {
            return false;
        }
        sleep(self.pause).await;
        self.pause = (self.pause * 2).min(Duration::from_secs(1));
        true
    }
}
