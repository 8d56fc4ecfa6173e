//! The single-message fallback: asks for one message at a time while requests for many fail.
//!
//! A service may fail a whole batch because of one of its messages. Azurite, for instance, leases a batch and then
//! answers 500 if a text holds a character that XML cannot carry. The leases of the batch end together, so that the
//! next request leases the same batch and fails again. If the poller asks for single messages, all other messages get
//! through, and only the request for the bad one fails. Azure itself accepts no such text; there, the fallback just
//! sends less load to a failing service.

use std::time::Duration;

use tokio::time::Instant;

use crate::storage::{MAX_MESSAGES, StoreError, StoreErrorKind};

/// The number of messages that a poller asks for by one request.
#[derive(Debug, Default)]
pub(super) struct SingleMessageFallback {
    last_failure: Option<Instant>,
    until: Option<Instant>,
}

impl SingleMessageFallback {
    /// Returns the maximum number of messages of one request.
    pub(super) fn at_most(&self) -> u32 {
        if self.until.is_some_and(|until| Instant::now() < until) { 1 } else { MAX_MESSAGES }
    }

    /// Records a failed request on a queue whose leases last `lease`. The second failure within three leases starts
    /// the fallback for three more leases: the messages that the failed request leased become visible again within
    /// one.
    pub(super) fn note(&mut self, error: &StoreError, lease: Duration) {
        // A request that was certainly refused, or never sent, has leased nothing.
        if error.kind() != StoreErrorKind::Unavailable || !error.is_ambiguous() {
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
        let failed =
            StoreError::new(StoreErrorKind::Unavailable, "get messages", "orders").with_ambiguous(true);
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
        // Without a connection no message was leased.
        for kind in [StoreErrorKind::Unauthorized, StoreErrorKind::Unavailable] {
            let refused = StoreError::new(kind, "get messages", "orders");
            single_message_fallback.note(&refused, LEASE);
            single_message_fallback.note(&refused, LEASE);
            assert_eq!(single_message_fallback.at_most(), 32, "{kind:?}");
        }
    }
}
