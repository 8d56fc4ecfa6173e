//! The count of the running jobs of one limited handler.
//!
//! The poller of a queue with only this kind waits for a free place and would get every place. A delivery
//! from a queue of several kinds does not wait: it is put back when no place is free, and would never find a
//! place while such pollers wait. The next place is therefore reserved for the refused delivery, and the
//! place after that goes to a poller.

use std::time::Duration;

use tokio::time::Instant;

/// The time for which a place is reserved for a refused delivery. Its message may have gone to another
/// process by then.
pub(super) const RESERVATION_TIME: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct HandlerCount {
    running: usize,
    limit: usize,
    next: NextPlace,
}

#[derive(Debug)]
enum NextPlace {
    Any,
    /// Reserved for a delivery until this instant, because a delivery was refused.
    DeliveryUntil(Instant),
    /// Goes to a poller, because a delivery got the last place.
    Poller,
}

impl HandlerCount {
    pub(super) fn new(limit: usize) -> Self {
        Self { running: 0, limit, next: NextPlace::Any }
    }

    pub(super) fn limit(&self) -> usize {
        self.limit
    }

    pub(super) fn has_room(&self) -> bool {
        self.running < self.limit
    }

    /// Returns whether a place is free that is not reserved for a delivery, so that a poller may fetch for
    /// it.
    pub(super) fn has_room_for_poller(&self) -> bool {
        let is_reserved = matches!(self.next, NextPlace::DeliveryUntil(end) if Instant::now() < end);
        self.running.saturating_add(usize::from(is_reserved)) < self.limit
    }

    pub(super) fn enter_poller(&mut self) {
        self.running += 1;
        if matches!(self.next, NextPlace::Poller) {
            self.next = NextPlace::Any;
        }
    }

    /// Takes a place for a delivery. Returns false if no place is free; the delivery is then put back.
    pub(super) fn enter_delivery(&mut self) -> bool {
        let has_room = self.has_room();
        if has_room {
            self.running += 1;
            if matches!(self.next, NextPlace::DeliveryUntil(_)) {
                self.next = NextPlace::Poller;
            }
        } else if !matches!(self.next, NextPlace::Poller) {
            // Each refusal extends the reservation, so that it lasts while a refused job keeps coming back.
            self.next = NextPlace::DeliveryUntil(Instant::now() + RESERVATION_TIME);
        }
        has_room
    }

    pub(super) fn leave(&mut self) {
        self.running -= 1;
    }
}
