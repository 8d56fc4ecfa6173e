//! The time until which a worker fetches nothing from a queue because a handler has asked for that.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

use crate::clock::WITHOUT_END;
use crate::sync::lock;

/// The snooze of one queue in one worker.
#[derive(Debug, Default)]
pub(crate) struct Snooze(Mutex<Option<Instant>>);

impl Snooze {
    /// Snoozes the queue for `wait` from now, unless it is already snoozed for longer.
    pub(crate) fn extend(&self, wait: Duration) {
        let until = Instant::now() + wait.min(WITHOUT_END);
        let mut snooze = lock(&self.0);
        *snooze = (*snooze).max(Some(until));
    }

    pub(crate) fn until(&self) -> Option<Instant> {
        lock(&self.0).filter(|until| Instant::now() < *until)
    }
}
