//! The running jobs of one limited handler.
//!
//! A place that becomes free goes to a queue of this kind alone, whose poller waits for it. A delivery from a queue of several kinds is put back
//! when it finds no place, and would find none as long as such pollers wait. So a place is kept for it, and the next one goes to a poller.

use std::time::Duration;

use tokio::time::Instant;

/// The time for which a place is kept for a delivery that was refused. It may have gone to another process meanwhile.
pub(super) const RESERVATION_TIME: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct HandlerCount {
    running: usize,
    limit: usize,
    next: NextPlace,
}

/// The caller that gets the next place.
#[derive(Debug)]
enum NextPlace {
    Any,
    /// A delivery, since one was refused.
    DeliveryUntil(Instant),
    /// A poller, since a delivery had the last place.
    Poller,
}

impl HandlerCount {
    pub(super) fn new(limit: usize) -> Self {
        Self { running: 0, limit, next: NextPlace::Any }
    }

    pub(super) fn has_room(&self) -> bool {
        self.running < self.limit
    }

    /// Returns whether a poller may fetch for a place: one that is not kept for a delivery.
    pub(super) fn has_room_for_poller(&self) -> bool {
        let is_kept = matches!(self.next, NextPlace::DeliveryUntil(end) if Instant::now() < end);
        self.running.saturating_add(usize::from(is_kept)) < self.limit
    }

    pub(super) fn enter_poller(&mut self) {
        self.running += 1;
        if matches!(self.next, NextPlace::Poller) {
            self.next = NextPlace::Any;
        }
    }

    /// Takes a place for a delivery that is put back otherwise. Returns false if there is none.
    pub(super) fn enter_delivery(&mut self) -> bool {
        let has_room = self.has_room();
        if has_room {
            self.running += 1;
            if matches!(self.next, NextPlace::DeliveryUntil(_)) {
                self.next = NextPlace::Poller;
            }
        } else if !matches!(self.next, NextPlace::Poller) {
            // Extended by each refusal, so that the place stays reserved while a refused job keeps coming back.
            self.next = NextPlace::DeliveryUntil(Instant::now() + RESERVATION_TIME);
        }
        has_room
    }

    pub(super) fn leave(&mut self) {
        self.running -= 1;
    }
}
