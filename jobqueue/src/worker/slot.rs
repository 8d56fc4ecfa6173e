//! The limit of concurrent handlers: a slot for each handler, and as many places again for deliveries whose handler
//! has finished and whose message must be deleted.
//!
//! A handler that has finished frees its slot at once, so that the next message can be fetched while the storage
//! deletes this one. The number of places is limited: if the storage is slow to delete, deliveries keep their slots,
//! and fetching waits.

use std::sync::{Arc, Mutex};

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::sync::lock;

/// The slots of a worker.
#[derive(Debug, Clone)]
pub(super) struct Slots {
    running: Arc<Semaphore>,
    settling: Arc<Semaphore>,
}

impl Slots {
    pub(super) fn new(concurrency: usize) -> Self {
        Self {
            running: Arc::new(Semaphore::new(concurrency)),
            settling: Arc::new(Semaphore::new(concurrency)),
        }
    }

    /// Returns the number of free slots.
    pub(super) fn free(&self) -> usize {
        self.running.available_permits()
    }

    /// Waits for a number of slots. Cancel-safe.
    pub(super) async fn take(&self, slots: u32) -> Result<OwnedSemaphorePermit, AcquireError> {
        Arc::clone(&self.running).acquire_many_owned(slots).await
    }

    /// Takes a slot if one is free.
    pub(super) fn try_take(&self) -> Result<OwnedSemaphorePermit, TryAcquireError> {
        Arc::clone(&self.running).try_acquire_owned()
    }

    /// Returns the slot as a delivery holds it.
    pub(super) fn occupied(&self, slot: OwnedSemaphorePermit) -> Occupied {
        let (running, settling) = (Arc::clone(&self.running), Arc::clone(&self.settling));
        Occupied { running, settling, place: Mutex::new(Some(slot)) }
    }
}

/// A slot in use, or a place among the deliveries that settle. Dropping it frees the place.
#[derive(Debug)]
pub(super) struct Occupied {
    running: Arc<Semaphore>,
    settling: Arc<Semaphore>,
    /// `None` while the delivery waits.
    place: Mutex<Option<OwnedSemaphorePermit>>,
}

impl Occupied {
    /// Frees the slot for another handler, if there is a place to settle in.
    pub(super) fn handler_is_done(&self) {
        if let Ok(place) = Arc::clone(&self.settling).try_acquire_owned() {
            *lock(&self.place) = Some(place);
        }
    }

    /// Frees the slot for another delivery before the handler runs.
    pub(super) fn leave(&self) {
        lock(&self.place).take();
    }

    /// Waits for a slot again. Cancel-safe.
    pub(super) async fn take_again(&self) {
        if lock(&self.place).is_some() {
            return;
        }
        // The semaphore is never closed.
        if let Ok(slot) = Arc::clone(&self.running).acquire_owned().await {
            *lock(&self.place) = Some(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slot_is_free_while_its_message_settles() {
        let slots = Slots::new(1);
        let first = slots.occupied(slots.try_take().unwrap());
        assert!(slots.try_take().is_err() && slots.free() == 0);
        first.handler_is_done();
        let second = slots.occupied(slots.try_take().unwrap());
        second.handler_is_done();
        assert!(slots.try_take().is_err(), "the first still settles");
        drop(first);
        second.handler_is_done();
        assert_eq!(slots.free(), 1);
    }

    #[tokio::test]
    async fn who_waits_leaves_the_slot_and_takes_it_again() {
        let slots = Slots::new(1);
        let waiting = slots.occupied(slots.try_take().unwrap());
        waiting.leave();
        assert_eq!(slots.free(), 1);
        waiting.take_again().await;
        waiting.take_again().await;
        assert_eq!(slots.free(), 0);
        drop(waiting);
        assert_eq!(slots.free(), 1);
    }
}
