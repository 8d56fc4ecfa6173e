//! The times of a received message.

use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::storage::LeasedMessage;

/// The time at which a message was received, and the time for which the storage hides it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiptTimes {
    pub(crate) inserted: SystemTime,
    /// The time of the request that received the message. It is by the storage's clock, so that workers with
    /// different clocks agree on how long a message has waited. While Service Bus has not shown its time,
    /// it is by this machine's clock.
    pub(super) received: SystemTime,
    /// The end of the lease as the storage gave it with the message.
    pub(super) locked_until: SystemTime,
    /// The instant at which this process received the message.
    arrived: Instant,
    /// The time for which the storage hides the message, counted from the request that received it: at least
    /// the lease. A Service Bus lock that was abandoned, and whose link has closed since, can last up to
    /// twice as long.
    pub(crate) hidden: Duration,
}

impl ReceiptTimes {
    pub(super) fn new(leased: &LeasedMessage, lease: Duration) -> Self {
        let granted = leased.granted.unwrap_or(lease);
        Self {
            inserted: leased.inserted,
            received: leased.next_visible.checked_sub(granted).unwrap_or(leased.inserted),
            locked_until: leased.next_visible,
            arrived: Instant::now(),
            hidden: granted.max(lease),
        }
    }

    /// Returns the current time by the clock of [`received`](Self::received).
    pub(super) fn now(&self) -> SystemTime {
        self.received + self.arrived.elapsed()
    }

    /// Returns the time from the insertion of the message until this delivery.
    pub(crate) fn waited(&self) -> Duration {
        self.received.duration_since(self.inserted).unwrap_or_default()
    }
}
