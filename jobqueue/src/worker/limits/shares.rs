//! Decides which queue gets the next slot. This module only holds data: a waiting caller is a value of type
//! `W`.
//!
//! A quarter of the slots is reserved. The queues divide it by weight, and each queue has at least one slot
//! if there are enough. No other queue takes a reserved slot, so that a queue makes progress however long the
//! jobs of another queue run. The other slots are common. If several queues wait, the next slot goes to the
//! queue with the fewest running jobs relative to its weight. Queues whose only handler has a limit of
//! concurrency divide its places by weight in the same way.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use super::handler_count::HandlerCount;

/// The concurrency is divided by this for the number of reserved slots.
const RESERVED_DIVISOR: usize = 4;

#[derive(Debug)]
pub(super) struct Shares<W> {
    queues: Vec<Share<W>>,
    handlers: Vec<HandlerCount>,
    /// The slots that are reserved for no queue.
    common: Count,
    concurrency: usize,
    granted: u64,
}

#[derive(Debug)]
pub(super) struct Share<W> {
    weight: u32,
    running: Count,
    reserved: usize,
    /// For each handler of the queue, the index of its count if the handler is limited.
    handlers: Vec<Option<usize>>,
    /// The waiting callers, each with a flag that is true if the caller already has a message.
    waiting: VecDeque<(bool, W)>,
    /// True from the grant of a slot to the poller until its fetch has returned.
    is_fetching: bool,
    /// True if the last fetch returned as many messages as requested.
    has_backlog: bool,
    /// The number of the last grant to this queue.
    last_grant: u64,
}

#[derive(Debug, Clone, Copy)]
struct Count {
    now: usize,
    limit: usize,
}

impl Count {
    fn new(limit: usize) -> Self {
        Self { now: 0, limit }
    }

    fn has_room(self) -> bool {
        self.now < self.limit
    }
}

/// The demand of the queues that share a number of places.
#[derive(Debug, Clone, Copy)]
struct Demand {
    places: usize,
    /// The sum of the weights of the queues that have work and may have more slots.
    weights: u128,
    /// The number of queues with a pending fetch.
    fetching: usize,
}

/// The demand of all queues for the slots, and for the places of each limited handler that is the only one of
/// its queues.
#[derive(Debug)]
struct Demands {
    slots: Demand,
    handlers: Vec<Demand>,
}

impl Demand {
    fn new(places: usize) -> Self {
        Self { places, weights: 0, fetching: 0 }
    }

    fn add<W>(&mut self, share: &Share<W>) {
        self.weights += share.demanded_weight();
        self.fetching += usize::from(share.is_fetching);
    }

    /// Returns whether the queue has fewer places than its share among the queues that have work.
    fn leaves_share<W>(&self, share: &Share<W>) -> bool {
        let weight = u128::from(share.weight);
        let weights = self.weights - share.demanded_weight() + weight;
        (share.running.now as u128).saturating_mul(weights) < (self.places as u128).saturating_mul(weight)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Grant {
    pub(super) queue: usize,
    /// The index of the handler's count in which the slot has a place.
    pub(super) handler: Option<usize>,
}

impl<W> Share<W> {
    pub(super) fn new(weight: u32, limit: usize, handlers: Vec<Option<usize>>) -> Self {
        let running = Count::new(limit);
        Self {
            weight,
            running,
            reserved: 0,
            handlers,
            waiting: VecDeque::new(),
            is_fetching: false,
            has_backlog: false,
            last_grant: 0,
        }
    }

    /// Returns the index of the count of the queue's only handler, if that is limited.
    fn only_limited_handler(&self) -> Option<usize> {
        match self.handlers.as_slice() {
            [only] => *only,
            _ => None,
        }
    }

    /// Returns the weight of the queue if it has work and may have more slots.
    fn demanded_weight(&self) -> u128 {
        let has_work = self.has_backlog || self.is_fetching || !self.waiting.is_empty();
        if has_work && self.running.has_room() { self.weight.into() } else { 0 }
    }
}

impl<W> Shares<W> {
    pub(super) fn new(concurrency: usize, mut queues: Vec<Share<W>>, handlers: Vec<usize>) -> Self {
        let weights: usize = queues.iter().map(|queue| queue.weight as usize).sum();
        if concurrency >= queues.len() {
            for queue in &mut queues {
                let part = (concurrency / RESERVED_DIVISOR) as u128 * u128::from(queue.weight)
                    / weights.max(1) as u128;
                queue.reserved = (part as usize).max(1).min(queue.running.limit);
            }
        }
        let mut excess = queues.iter().map(|queue| queue.reserved).sum::<usize>().saturating_sub(concurrency);
        // The minimum of one slot per queue may add up to more than the concurrency.
        while excess > 0
            && let Some(largest) = queues.iter_mut().max_by_key(|queue| queue.reserved)
        {
            largest.reserved -= 1;
            excess -= 1;
        }
        let reserved: usize = queues.iter().map(|queue| queue.reserved).sum();
        let common = Count::new(concurrency - reserved);
        let handlers = handlers.into_iter().map(HandlerCount::new).collect();
        Self { queues, handlers, common, concurrency, granted: 0 }
    }

    pub(super) fn reserved(&self, queue: usize) -> usize {
        self.queues[queue].reserved
    }

    /// Returns the maximum number of slots that a queue can have at once.
    pub(super) fn max_slots(&self, queue: usize) -> usize {
        let share = &self.queues[queue];
        (share.reserved + self.common.limit).min(share.running.limit)
    }

    pub(super) fn free_slots(&self, queue: usize) -> usize {
        let share = &self.queues[queue];
        let own = share.reserved.saturating_sub(share.running.now);
        (own + self.common.limit - self.common.now).min(share.running.limit - share.running.now)
    }

    /// Adds a waiting caller. Callers that already have a message come before the poller, in order of
    /// arrival.
    pub(super) fn wait(&mut self, queue: usize, has_message: bool, caller: W) {
        let waiting = &mut self.queues[queue].waiting;
        let at = if has_message { waiting.partition_point(|(has, _)| *has) } else { waiting.len() };
        waiting.insert(at, (has_message, caller));
    }

    /// Removes the callers that no longer wait.
    pub(super) fn forget(&mut self, gone: impl Fn(&W) -> bool) {
        for queue in &mut self.queues {
            queue.waiting.retain(|(_, caller)| !gone(caller));
        }
    }

    /// Grants a slot to the caller whose turn it is.
    pub(super) fn grant_next(&mut self) -> Option<(Grant, W)> {
        let (numbers, demands) = (0..self.queues.len(), self.demands());
        let waiting = numbers.filter(|queue| !self.queues[*queue].waiting.is_empty());
        let ready = waiting.filter(|queue| self.may_run(*queue) && self.leaves_room(*queue, &demands));
        let next = ready.min_by(|left, right| self.order(*left, *right))?;
        let share = &mut self.queues[next];
        let (has_message, caller) = share.waiting.pop_front()?;
        share.is_fetching |= !has_message;
        self.grant(next).map(|grant| (grant, caller))
    }

    /// Orders queues by their running jobs relative to their weight, then by their last grant.
    fn order(&self, left: usize, right: usize) -> std::cmp::Ordering {
        let (left, right) = (&self.queues[left], &self.queues[right]);
        let by_weight = |a: &Share<W>, b: &Share<W>| a.running.now as u128 * u128::from(b.weight);
        by_weight(left, right).cmp(&by_weight(right, left)).then(left.last_grant.cmp(&right.last_grant))
    }

    /// Grants a slot to a queue, if one is free for the queue.
    pub(super) fn grant(&mut self, queue: usize) -> Option<Grant> {
        if !self.may_run(queue) {
            return None;
        }
        self.granted += 1;
        let share = &mut self.queues[queue];
        share.last_grant = self.granted;
        share.running.now += 1;
        if share.running.now > share.reserved {
            self.common.now += 1;
        }
        let handler = share.only_limited_handler();
        if let Some(handler) = handler {
            self.handlers[handler].enter_poller();
        }
        Some(Grant { queue, handler })
    }

    /// Grants a further slot to a queue that already has one, if the queue stays within its share among the
    /// queues that have work.
    pub(super) fn grant_further(&mut self, queue: usize) -> Option<Grant> {
        if self.is_within_share(queue, &self.demands()) { self.grant(queue) } else { None }
    }

    /// Returns the demand of all queues. Computed once per grant, for any number of queues.
    fn demands(&self) -> Demands {
        let handlers = self.handlers.iter().map(|handler| Demand::new(handler.limit())).collect();
        let mut demands = Demands { slots: Demand::new(self.concurrency), handlers };
        for share in &self.queues {
            demands.slots.add(share);
            if let Some(handler) = share.only_limited_handler() {
                demands.handlers[handler].add(share);
            }
        }
        demands
    }

    /// Returns the demand for the slots, and for the places of the queue's only handler if that is limited.
    fn demands_of<'d>(&self, queue: usize, demands: &'d Demands) -> impl Iterator<Item = &'d Demand> {
        let handler = self.queues[queue].only_limited_handler();
        std::iter::once(&demands.slots).chain(handler.map(|handler| &demands.handlers[handler]))
    }

    /// Returns whether the queue has fewer slots than its share among the queues that have work.
    fn is_within_share(&self, queue: usize, demands: &Demands) -> bool {
        let share = &self.queues[queue];
        self.demands_of(queue, demands).all(|demand| demand.leaves_share(share))
    }

    /// Returns whether the queue may take a slot without taking the share of another queue with a pending
    /// fetch.
    fn leaves_room(&self, queue: usize, demands: &Demands) -> bool {
        let share = &self.queues[queue];
        let is_alone = |demand: &Demand| demand.fetching == usize::from(share.is_fetching);
        self.demands_of(queue, demands).all(|demand| is_alone(demand) || demand.leaves_share(share))
    }

    pub(super) fn fetched(&mut self, queue: usize) {
        self.queues[queue].is_fetching = false;
    }

    /// Records whether a queue has more messages than its last fetch returned.
    pub(super) fn note_backlog(&mut self, queue: usize, has_backlog: bool) {
        self.queues[queue].has_backlog = has_backlog;
    }

    /// Takes a place in the count of a handler for a delivery. Returns false if no place is free.
    pub(super) fn enter_handler(&mut self, handler: usize) -> bool {
        self.handlers[handler].enter_delivery()
    }

    /// Frees a place in the count of a handler.
    pub(super) fn leave_handler(&mut self, handler: usize) {
        self.handlers[handler].leave();
    }

    pub(super) fn release(&mut self, grant: Grant) {
        let share = &mut self.queues[grant.queue];
        if share.running.now > share.reserved {
            self.common.now -= 1;
        }
        share.running.now -= 1;
        if let Some(handler) = grant.handler {
            self.leave_handler(handler);
        }
    }

    fn may_run(&self, queue: usize) -> bool {
        let share = &self.queues[queue];
        let has_slot = share.running.now < share.reserved || self.common.has_room();
        let a_handler_is_free = match share.handlers.as_slice() {
            [Some(only)] => self.handlers[*only].has_room_for_poller(),
            several => {
                several.iter().any(|handler| handler.is_none_or(|handler| self.handlers[handler].has_room()))
            }
        };
        share.running.has_room() && has_slot && a_handler_is_free
    }
}
