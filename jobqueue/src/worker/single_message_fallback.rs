//! Asking for one message at a time while asking for many fails.
//!
//! A service may fail a whole batch because of one message in it: Azurite answers 500 when a text holds a character
//! that XML cannot carry, after it has leased the batch. Leased together, the messages come back together, and the
//! batch fails again and again. Asked for one by one, all others get through; the bad one only costs its own request.
//! Azure itself takes no such text; there, a failing service is merely asked for less.

use std::time::Duration;

use tokio::time::Instant;

use crate::storage::{MAX_MESSAGES, StoreError, StoreErrorKind};

/// The number of messages that a poller asks for in one request.
#[derive(Debug, Default)]
pub(super) struct SingleMessageFallback {
    last_failure: Option<Instant>,
    until: Option<Instant>,
}

impl SingleMessageFallback {
    /// The most messages of one request.
    pub(super) fn at_most(&self) -> u32 {
        if self.until.is_some_and(|until| Instant::now() < until) { 1 } else { MAX_MESSAGES }
    }

    /// Takes down that a request failed, on a queue whose leases last `lease`. The second failure within three leases
    /// makes cautious for three leases more: messages that were leased by a failed request come back within one.
    pub(super) fn note(&mut self, error: &StoreError, lease: Duration) {
        if error.kind() != StoreErrorKind::Unavailable {
            return;
        }
        let now = Instant::now();
        let lately = lease * 3;
        if self.last_failure.is_some_and(|last| now - last <= lately) {
            self.until = Some(now + lately);
        }
        self.last_failure = Some(now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn repeated_failures_make_cautious_for_a_while() {
        let mut single_message_fallback = SingleMessageFallback::default();
        let failed = StoreError::new(StoreErrorKind::Unavailable, "get messages", "orders");
        single_message_fallback.note(&failed, LEASE);
        assert_eq!(single_message_fallback.at_most(), 32);
        tokio::time::advance(LEASE).await;
        single_message_fallback.note(&failed, LEASE);
        assert_eq!(single_message_fallback.at_most(), 1);
        tokio::time::advance(LEASE * 3).await;
        assert_eq!(single_message_fallback.at_most(), 32);
    }

    #[tokio::test(start_paused = true)]
    async fn other_failures_do_not() {
        let mut single_message_fallback = SingleMessageFallback::default();
        let refused = StoreError::new(StoreErrorKind::Unauthorized, "get messages", "orders");
        single_message_fallback.note(&refused, LEASE);
        single_message_fallback.note(&refused, LEASE);
        assert_eq!(single_message_fallback.at_most(), 32);
    }
}
