//! The limit of concurrent handlers: a slot for each handler, and as many places again for deliveries whose
//! handler has finished and whose message must be deleted.
//!
//! A finished handler frees its slot at once, so that the next message can be fetched while the storage
//! deletes the finished one. The number of places is limited: if the storage is slow to delete, deliveries
//! keep their slots, and fetching waits.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use super::handler_count::RESERVATION_TIME;
use super::rate::{RateLimit, RateToken};
use super::settings::{HandlerLimit, LimitSettings};
use super::shares::{Grant, Shares};
use crate::delivery::Registry;
use crate::sync::lock;

/// The minimum put-back of a message whose handler has reached its limit.
const MIN_BUSY_DELAY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(in crate::worker) struct QueueSlots {
    core: Arc<Core>,
    queue: usize,
}

#[derive(Debug)]
struct Core {
    shares: Mutex<Shares<oneshot::Sender<Slot>>>,
    settling: Arc<Semaphore>,
    handlers: BTreeMap<&'static str, HandlerLimit>,
    rates: Vec<Option<RateLimit>>,
}

/// A slot, with a token if the rate of its handler is limited. Dropping it frees both.
#[derive(Debug)]
pub(in crate::worker) struct Slot {
    core: Arc<Core>,
    grant: Grant,
    token: Option<RateToken>,
}

impl QueueSlots {
    /// Returns the slots of each queue, in the order of their names.
    pub(in crate::worker) fn of_all(
        concurrency: usize,
        limits: &LimitSettings,
        registry: &Registry,
    ) -> Vec<Self> {
        let resolved = limits.resolve(concurrency, registry);
        let core = Arc::new(Core {
            shares: Mutex::new(resolved.shares),
            settling: Arc::new(Semaphore::new(concurrency.min(Semaphore::MAX_PERMITS))),
            handlers: resolved.handlers,
            rates: resolved.rates,
        });
        (0..registry.0.len()).map(|queue| Self { core: Arc::clone(&core), queue }).collect()
    }

    pub(in crate::worker) fn free_and_max(&self) -> (usize, usize) {
        let shares = lock(&self.core.shares);
        (shares.free_slots(self.queue), shares.max_slots(self.queue))
    }

    /// Waits for a slot. Cancel-safe.
    pub(in crate::worker) async fn take(&self) -> Slot {
        self.take_in_turn(false).await
    }

    /// Takes a further slot if one is free and is not another queue's share.
    pub(in crate::worker) fn try_take_further(&self) -> Option<Slot> {
        let grant = {
            let mut shares = lock(&self.core.shares);
            shares.forget(oneshot::Sender::is_closed);
            shares.grant_further(self.queue)?
        };
        let slot = self.slot_of(grant);
        match self.rate() {
            None => Some(slot),
            Some(rate) => rate.try_take().ok().map(|token| slot.with(token)),
        }
    }

    /// Records that a fetch has ended, or does not begin after all.
    pub(in crate::worker) fn fetched(&self) {
        lock(&self.core.shares).fetched(self.queue);
        grant_all(&self.core);
    }

    /// Records whether the queue has more messages than its last fetch returned.
    pub(in crate::worker) fn note_backlog(&self, has_backlog: bool) {
        lock(&self.core.shares).note_backlog(self.queue, has_backlog);
    }

    pub(in crate::worker) fn occupied(&self, slot: Slot) -> Occupied {
        Occupied { slots: self.clone(), held: Mutex::new(HeldSlot::Slot(slot)) }
    }

    fn rate(&self) -> Option<&RateLimit> {
        self.core.rates[self.queue].as_ref()
    }

    async fn take_in_turn(&self, has_message: bool) -> Slot {
        let Some(rate) = self.rate() else { return self.wait_for_slot(has_message).await };
        // A waiter for a slot holds no token, and a waiter for a token holds no slot, so neither can block
        // the other.
        loop {
            let token = rate.take().await;
            let grant = lock(&self.core.shares).grant(self.queue);
            if let Some(grant) = grant {
                return self.slot_of(grant).with(token);
            }
            drop(token);
            let slot = self.wait_for_slot(has_message).await;
            if let Ok(token) = rate.try_take() {
                return slot.with(token);
            }
            drop(slot);
            self.fetched();
        }
    }

    fn slot_of(&self, grant: Grant) -> Slot {
        Slot { core: Arc::clone(&self.core), grant, token: None }
    }

    async fn wait_for_slot(&self, has_message: bool) -> Slot {
        let (sender, mut receiver) = oneshot::channel();
        lock(&self.core.shares).wait(self.queue, has_message, sender);
        loop {
            grant_all(&self.core);
            // Nothing else wakes the waiter when the reservation of a place ends.
            match timeout(RESERVATION_TIME, &mut receiver).await {
                Ok(Ok(slot)) => return slot,
                // A sender is dropped only after its receiver.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => {}
            }
        }
    }
}

/// Grants free slots to waiting callers.
fn grant_all(core: &Arc<Core>) {
    loop {
        let next = {
            let mut shares = lock(&core.shares);
            shares.forget(oneshot::Sender::is_closed);
            shares.grant_next()
        };
        let Some((grant, waiting)) = next else { return };
        // Sent without the lock: if the caller is gone, the slot is dropped here, which takes the lock.
        drop(waiting.send(Slot { core: Arc::clone(core), grant, token: None }));
    }
}

impl Slot {
    fn with(mut self, token: RateToken) -> Self {
        self.token = Some(token);
        self
    }

    /// Takes the place and the token that the handler of `kind` needs, unless the slot already has them.
    /// Dropping the slot returns the place, and the token if it was not spent.
    fn reserve(&mut self, kind: &str) -> Result<(), Duration> {
        if let Some(limit) = self.core.handlers.get(kind) {
            if self.grant.handler.is_none()
                && let Some(count) = limit.count
            {
                if !lock(&self.core.shares).enter_handler(count) {
                    return Err(MIN_BUSY_DELAY);
                }
                self.grant.handler = Some(count);
            }
            if self.token.is_none()
                && let Some(rate) = &limit.rate
            {
                let taken = rate.try_take_for_delivery().map_err(|wait| wait.max(MIN_BUSY_DELAY));
                self.token = Some(taken?);
            }
        }
        Ok(())
    }

    /// Gives the handler's place to another delivery of the kind. Keeps the token, which delays no later
    /// delivery.
    fn give_back(&mut self) {
        if let Some(handler) = self.grant.handler.take() {
            lock(&self.core.shares).leave_handler(handler);
            grant_all(&self.core);
        }
    }

    /// Takes the place and spends the token of `kind`. Returns the time until the handler may start, or else
    /// the put-back of the message.
    fn admit(&mut self, kind: &str) -> Result<Duration, Duration> {
        self.reserve(kind)?;
        self.token.take().map_or(Ok(Duration::ZERO), |token| token.begin(MIN_BUSY_DELAY))
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.core.shares).release(self.grant);
        grant_all(&self.core);
    }
}

/// A slot in use, or a place among the deliveries that settle. Dropping it frees the place.
#[derive(Debug)]
pub(in crate::worker) struct Occupied {
    slots: QueueSlots,
    held: Mutex<HeldSlot>,
}

#[derive(Debug)]
enum HeldSlot {
    Slot(Slot),
    #[expect(dead_code, reason = "held until it is dropped")]
    PlaceToSettle(OwnedSemaphorePermit),
    /// The delivery has given up its slot while it waits.
    Nothing,
}

impl Occupied {
    /// Takes the place and the token for a handler of `kind`, or returns the put-back of the message.
    pub(in crate::worker) fn reserve(&self, kind: &str) -> Result<(), Duration> {
        self.with_slot(|slot| slot.reserve(kind))
    }

    /// Gives the handler's place to other deliveries of its kind.
    pub(in crate::worker) fn give_back(&self) {
        if let HeldSlot::Slot(slot) = &mut *lock(&self.held) {
            slot.give_back();
        }
    }

    /// Returns the time until the handler of `kind` may begin, at most a second, or else the put-back of the
    /// message.
    pub(in crate::worker) fn admit(&self, kind: &str) -> Result<Duration, Duration> {
        self.with_slot(|slot| slot.admit(kind))
    }

    fn with_slot<T: Default>(
        &self,
        ask: impl FnOnce(&mut Slot) -> Result<T, Duration>,
    ) -> Result<T, Duration> {
        match &mut *lock(&self.held) {
            HeldSlot::Slot(slot) => ask(slot),
            HeldSlot::PlaceToSettle(_) | HeldSlot::Nothing => Ok(T::default()),
        }
    }

    /// Frees the slot for another handler, if a place to settle is free. Returns whether the delivery has such
    /// a place.
    pub(in crate::worker) fn handler_is_done(&self) -> bool {
        if matches!(*lock(&self.held), HeldSlot::PlaceToSettle(_)) {
            return true;
        }
        let place = Arc::clone(&self.slots.core.settling).try_acquire_owned();
        place.map(|place| self.replace(HeldSlot::PlaceToSettle(place))).is_ok()
    }

    /// Frees the slot for another handler, if the delivery has one and a place to settle is free.
    pub(in crate::worker) fn give_away(&self) {
        let has_slot = matches!(*lock(&self.held), HeldSlot::Slot(_));
        let _ = has_slot && self.handler_is_done();
    }

    /// Frees the slot for another delivery before the handler runs.
    pub(in crate::worker) fn leave(&self) {
        self.replace(HeldSlot::Nothing);
    }

    /// Waits for a slot again, before the poller. Cancel-safe.
    pub(in crate::worker) async fn take_again(&self) {
        if matches!(*lock(&self.held), HeldSlot::Nothing) {
            let slot = self.slots.take_in_turn(true).await;
            self.replace(HeldSlot::Slot(slot));
        }
    }

    /// Waits for a place to settle if the delivery has left its slot. Cancel-safe.
    pub(in crate::worker) async fn take_place_to_settle(&self) {
        if matches!(*lock(&self.held), HeldSlot::Nothing) {
            // The semaphore is never closed.
            let place = Arc::clone(&self.slots.core.settling).acquire_owned().await;
            self.replace(place.map_or(HeldSlot::Nothing, HeldSlot::PlaceToSettle));
        }
    }

    fn replace(&self, held: HeldSlot) {
        let former = std::mem::replace(&mut *lock(&self.held), held);
        // Dropped without the lock.
        drop(former);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn single_slot() -> QueueSlots {
        let share = super::super::shares::Share::new(1, usize::MAX, vec![None]);
        let core = Core {
            shares: Mutex::new(Shares::new(1, vec![share], vec![])),
            settling: Arc::new(Semaphore::new(1)),
            handlers: BTreeMap::new(),
            rates: vec![None],
        };
        QueueSlots { core: Arc::new(core), queue: 0 }
    }

    #[test]
    fn slot_is_free_while_its_message_settles() {
        let slots = single_slot();
        let first = slots.occupied(slots.try_take_further().unwrap());
        assert!(slots.try_take_further().is_none());
        assert_eq!(slots.free_and_max(), (0, 1));
        assert!(first.handler_is_done());
        let second = slots.occupied(slots.try_take_further().unwrap());
        assert!(!second.handler_is_done());
        assert!(slots.try_take_further().is_none(), "the first delivery still settles");
        drop(first);
        assert!(second.handler_is_done());
        assert_eq!(slots.free_and_max(), (1, 1));
    }

    #[tokio::test]
    async fn waiting_delivery_leaves_its_slot_and_takes_it_again() {
        let slots = single_slot();
        let waiting = slots.occupied(slots.try_take_further().unwrap());
        waiting.leave();
        assert_eq!(slots.free_and_max().0, 1);
        waiting.take_again().await;
        waiting.take_again().await;
        assert_eq!(slots.free_and_max().0, 0);
        drop(waiting);
        assert_eq!(slots.free_and_max().0, 1);
    }

    #[tokio::test]
    async fn deliveries_without_a_slot_wait_for_the_places_to_settle() {
        let slots = single_slot();
        let [first, second] = [(), ()].map(|()| {
            let waiting = slots.occupied(slots.try_take_further().unwrap());
            waiting.leave();
            waiting
        });
        first.take_place_to_settle().await;
        let mut waits = Box::pin(second.take_place_to_settle());
        assert!(futures_util::poll!(&mut waits).is_pending());
        drop(first);
        assert!(futures_util::poll!(&mut waits).is_ready());
    }

    #[tokio::test]
    async fn slot_of_a_dropped_waiter_goes_to_the_next() {
        let slots = single_slot();
        let taken = slots.take().await;
        let mut gone = Box::pin(slots.take());
        assert!(futures_util::poll!(&mut gone).is_pending());
        let mut next = Box::pin(slots.take());
        assert!(futures_util::poll!(&mut next).is_pending());
        drop(taken);
        drop(gone);
        assert!(futures_util::poll!(&mut next).is_ready());
    }
}
