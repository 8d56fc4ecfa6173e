//! Fetches messages of one queue, never more than the worker has free slots.

use std::ops::ControlFlow;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::deliveries::{Deliveries, DeliveryGuard};
use super::limits::{QueueSlots, Slot};
use super::pacing::Permit;
use crate::delivery::Incoming;
use crate::event::Event;
use crate::job::Backoff;
use crate::job::outcome::{chain, panic_text};
use crate::presence::EVERY_KIND;
use crate::queue_core::Idle;
use crate::settings::QueueSettings;
use crate::storage::{LeasedMessage, MAX_MESSAGES, StoreError, StoreErrorKind};

/// The pauses after failed requests: doubling, up to a minute.
const POLL_BACKOFF: Backoff = Backoff::exponential(Duration::from_millis(500), Duration::from_secs(60));
/// The time without a panic after which the count of panics is reset.
const PANIC_RESET_TIME: Duration = Duration::from_secs(600);
/// The maximum time that a starting worker waits for the requests to cancel jobs.
const FIRST_REQUESTS_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum time that a stopping worker waits for the answer to its last request.
const LAST_ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// The time for which a full worker gathers free slots, so that it requests many messages at once instead of
/// one at a time.
const SLOT_GATHER_TIME: Duration = Duration::from_millis(2);
/// The pause of a worker that runs until it is idle, after an empty answer that does not prove that the queue
/// is empty.
const UNCERTAIN_PAUSE: Duration = Duration::from_millis(20);
/// The maximum number of concurrent requests of one round.
const MAX_REQUESTS: u32 = 8;

pub(super) struct Poller {
    pub(super) number: usize,
    pub(super) slots: QueueSlots,
    pub(super) deliveries: Arc<Deliveries>,
    /// True if the worker runs until it is idle.
    pub(super) until_idle: bool,
}

/// The state that a round passes to the next round.
struct Pace {
    idle: Idle,
    failures: u32,
    /// True if the last round returned as many messages as requested.
    was_full: bool,
}

impl Pace {
    /// Returns the maximum number of messages that the next round requests.
    fn max_slots(&self, permit: Permit) -> usize {
        if permit == Permit::Probe || self.failures > 0 {
            // One message is enough to see whether a failed storage works again. If it does not, a lease may
            // be granted without our learning of it, which costs a delivery.
            1
        } else if !self.was_full {
            // One request is enough to see whether a queue is empty.
            MAX_MESSAGES as usize
        } else {
            usize::MAX
        }
    }
}

impl Poller {
    /// Polls until the worker stops. Treats a panic in an adapter's notifications or groups, which the
    /// storage's wrapper does not catch, as a failed request.
    pub(super) async fn run(self) {
        let stop = &self.deliveries.stop;
        let (mut failures, mut began) = (0, Instant::now());
        while let Err(panic) = AssertUnwindSafe(self.poll()).catch_unwind().await {
            self.slots.fetched();
            failures = if began.elapsed() > PANIC_RESET_TIME { 1 } else { failures + 1 };
            let queue = &self.deliveries.executor.core.name;
            let detail = format!("the storage panicked: {}", panic_text(&*panic));
            let error = StoreError::new(StoreErrorKind::Protocol, "get messages", queue).with_detail(detail);
            stop.run_until_cancelled(self.back_off(&error, Instant::now(), failures)).await;
            began = Instant::now();
        }
    }

    async fn poll(&self) {
        let Deliveries { state, executor, circuit, stop, .. } = &*self.deliveries;
        let core = &executor.core;
        if let Some(tracker) = executor.state.tracker() {
            // A waiting job that an operator has cancelled does not start.
            let known = tokio::time::timeout(FIRST_REQUESTS_TIMEOUT, tracker.has_requests().cancelled());
            let _ = stop.run_until_cancelled(known).await;
        }
        executor.state.events.emit(|| {
            let kinds = executor.handlers.all_kinds().into_iter().filter(|kind| kind != EVERY_KIND);
            Event::Listening { queue: core.name.clone(), kinds: kinds.collect() }
        });
        let idle = core.idle(state.options.max_idle_delay);
        // No long pauses in `run_until_idle`: the unknown messages would be visible again after each pause.
        let may_pause = !self.until_idle && !idle.announces_all();
        let mut pace = Pace { idle, failures: 0, was_full: false };
        // The stop ends a wait at once. A request gets a little more time, so that the messages that it
        // leases are put back.
        while let Some(settings) =
            stop.run_until_cancelled(self.ready_settings(may_pause && !pace.was_full, &mut pace.idle)).await
        {
            state.health.note_resting(&core.name);
            let Some(permit) = self.permit(&settings, &mut pace.idle).await else { continue };
            let free = stop.run_until_cancelled(self.free_slots(pace.was_full)).await;
            let Some(slots) = free else { return self.slots.fetched() };
            // While this poller waited for a slot, an operator may have paused the queue, its circuit may
            // have opened, or a handler may have snoozed it.
            let settings = stop.run_until_cancelled(core.fresh_settings()).await;
            let Some(settings) = settings else { return self.slots.fetched() };
            let is_permitted = circuit.permit() == permit && executor.snooze.until().is_none();
            if !is_permitted || settings.is_paused(core.now()) {
                drop(slots);
                self.slots.fetched();
                continue;
            }
            state.health.note_polling(&core.name);
            if self.round(&settings, slots, permit, &mut pace).await.is_break() {
                return;
            }
        }
    }

    /// Returns the permission to fetch. If the queue is paused or snoozed, or its circuit is open, waits and
    /// returns `None`.
    async fn permit(&self, settings: &QueueSettings, idle: &mut Idle) -> Option<Permit> {
        let Deliveries { executor, circuit, activity, stop, .. } = &*self.deliveries;
        let (permit, snoozed) = (circuit.permit(), executor.snooze.until());
        let is_paused = settings.is_paused(executor.core.now());
        if !is_paused && snoozed.is_none() && matches!(permit, Permit::Closed | Permit::Probe) {
            return Some(permit);
        }
        // Its backlog takes no share from the other queues meanwhile.
        self.slots.note_backlog(false);
        if is_paused {
            activity.found_empty(self.number, activity.generation());
            // `nap` ignores notifications: messages that arrive stay in the paused queue.
            stop.run_until_cancelled(idle.nap()).await;
        } else if let Some(until) = snoozed {
            self.rest(activity.generation(), tokio::time::sleep_until(until)).await;
        } else if let Permit::OpenUntil(until) = permit {
            stop.run_until_cancelled(tokio::time::sleep_until(until)).await;
        } else if let Permit::Probing(until) = permit {
            let ended = tokio::time::timeout_at(until, circuit.ended());
            let _ = stop.run_until_cancelled(ended).await;
        }
        None
    }

    /// Fetches once, and starts the deliveries of the messages. After an empty answer, waits until messages
    /// may have arrived.
    async fn round(
        &self,
        settings: &Arc<QueueSettings>,
        mut slots: Vec<Slot>,
        permit: Permit,
        pace: &mut Pace,
    ) -> ControlFlow<()> {
        let Deliveries { state, executor, activity, stop, .. } = &*self.deliveries;
        let core = &executor.core;
        slots.truncate(pace.max_slots(permit));
        let generation = activity.generation();
        let (requested, sent) = (slots.len(), Instant::now());
        let answer = self.with_stop_grace(self.fetch(settings, slots, permit)).await;
        self.slots.fetched();
        match answer {
            None => return ControlFlow::Break(()),
            // The storage has stopped permanently: do not retry.
            Some(Err(error)) if error.kind() == StoreErrorKind::Stopped => {
                state.fail(error);
                stop.cancel();
                return ControlFlow::Break(());
            }
            Some(Err(error)) => {
                pace.failures += 1;
                self.slots.note_backlog(false);
                stop.run_until_cancelled(self.back_off(&error, sent, pace.failures)).await;
            }
            Some(Ok(fetched)) => {
                pace.failures = 0;
                pace.was_full = fetched.messages == requested;
                self.slots.note_backlog(pace.was_full);
                let is_empty = fetched.messages == 0;
                if is_empty && fetched.is_uncertain {
                    state.health.note_uncertain_answer(&core.name);
                } else {
                    state.health.note_success(&core.name);
                }
                if !is_empty {
                    pace.idle.reset();
                    return ControlFlow::Continue(());
                }
                if fetched.is_partial && self.until_idle {
                    stop.run_until_cancelled(pace.idle.nap()).await;
                } else if fetched.is_uncertain && self.until_idle {
                    stop.run_until_cancelled(tokio::time::sleep(UNCERTAIN_PAUSE)).await;
                } else {
                    self.rest(generation, pace.idle.pause(fetched.next_visible_in)).await;
                }
            }
        }
        ControlFlow::Continue(())
    }

    /// Reports the queue as empty at `generation`, and waits for `pause`. A worker that runs until it is idle
    /// waits at most until no job is running: the last job may have sent more messages.
    async fn rest(&self, generation: u64, pause: impl Future<Output = ()>) {
        let Deliveries { activity, stop, .. } = &*self.deliveries;
        activity.found_empty(self.number, generation);
        let pause = async {
            tokio::select! {
                biased;
                () = pause => {}
                () = activity.quiet_after(generation), if self.until_idle => {}
            }
        };
        stop.run_until_cancelled(pause).await;
    }

    /// Leases up to one message for each slot, by several concurrent requests. Returns an error only if every
    /// request failed: the messages of the other requests are being handled.
    async fn fetch(
        &self,
        settings: &Arc<QueueSettings>,
        slots: Vec<Slot>,
        permit: Permit,
    ) -> Result<Fetched, StoreError> {
        let mut slots = slots.into_iter();
        let parts =
            std::iter::from_fn(|| Some(slots.by_ref().take(MAX_MESSAGES as usize).collect::<Vec<_>>()));
        let parts = parts.take_while(|part| !part.is_empty());
        let answers = join_all(parts.map(|part| self.request(settings, part, permit))).await;
        let mut fetched = Fetched::default();
        let (mut succeeded, mut failed) = (false, None);
        for answer in answers {
            match answer {
                Ok(received) => {
                    succeeded = true;
                    fetched.messages += received.messages;
                    fetched.is_uncertain |= received.is_uncertain;
                    fetched.is_partial |= received.is_partial;
                    fetched.next_visible_in = received.next_visible_in.or(fetched.next_visible_in);
                }
                Err(error) => failed = Some(error),
            }
        }
        match failed {
            Some(error) if !succeeded => Err(error),
            Some(error) => {
                let queue = &self.deliveries.executor.core.name;
                crate::log::debug!(%queue, %error, "one of several requests failed");
                Ok(fetched)
            }
            None => Ok(fetched),
        }
    }

    /// Leases up to one message for each slot by one request. Starts their deliveries at once, because their
    /// leases run and another request of the round may take long.
    async fn request(
        &self,
        settings: &Arc<QueueSettings>,
        slots: Vec<Slot>,
        permit: Permit,
    ) -> Result<Fetched, StoreError> {
        let core = &self.deliveries.executor.core;
        let (received, requested) = core.get(slots.len() as u32, settings).await?;
        let fetched = Fetched {
            messages: received.messages.len(),
            next_visible_in: received.next_visible_in,
            is_uncertain: received.is_uncertain,
            is_partial: received.is_partial,
        };
        if fetched.messages > 0 {
            self.start_all(received.messages, requested, settings, slots, permit);
        }
        Ok(fetched)
    }

    #[allow(clippy::too_many_arguments, reason = "an answer and the arguments of its request")]
    fn start_all(
        &self,
        messages: Vec<LeasedMessage>,
        requested: Instant,
        settings: &Arc<QueueSettings>,
        slots: Vec<Slot>,
        permit: Permit,
    ) {
        let deliveries = &self.deliveries;
        let mut probe = (permit == Permit::Probe).then(|| deliveries.circuit.probe());
        // If a storage returns more messages than requested, the excess messages reappear when their leases
        // run out.
        deliveries.activity.started(messages.len().min(slots.len()));
        for (leased, slot) in messages.into_iter().zip(slots) {
            // Boxed, so that the futures that hold it stay small.
            let incoming = Box::new(Incoming { leased, requested, settings: Arc::clone(settings) });
            let guard = DeliveryGuard::new(deliveries, self.slots.occupied(slot), probe.take());
            deliveries.start(incoming, guard);
        }
    }

    /// Returns the queue's settings once this worker may fetch. First leaves unknown messages to other
    /// workers for a while, and waits until the storage no longer throttles.
    async fn ready_settings(&self, may_pause_long: bool, idle: &mut Idle) -> Arc<QueueSettings> {
        let Deliveries { executor, unknown, .. } = &*self.deliveries;
        let core = &executor.core;
        unknown.leave_to_others(may_pause_long, core.runtime(), idle.notified()).await;
        core.storage.throttle().until_ready().await;
        core.fresh_settings().await
    }

    /// Gives a pending request a little time for its answer after the stop, so that the messages that it
    /// leases can be put back at once. Without an answer they become visible again when their leases run out.
    async fn with_stop_grace<T>(&self, request: impl Future<Output = T>) -> Option<T> {
        let given_up = async {
            self.deliveries.stop.cancelled().await;
            tokio::time::sleep(LAST_ANSWER_TIMEOUT).await;
        };
        tokio::select! {
            biased;
            answer = request => Some(answer),
            () = given_up => None,
        }
    }

    async fn back_off(&self, error: &StoreError, sent: Instant, failures: u32) {
        let runtime = self.deliveries.executor.core.runtime();
        let wait =
            error.retry_after().unwrap_or_else(|| POLL_BACKOFF.delay(failures, runtime) + SLOT_GATHER_TIME);
        let text = chain(error);
        let Deliveries { state, executor, .. } = &*self.deliveries;
        let queue = executor.core.name.clone();
        state.health.note_failure(&queue, sent, &text);
        crate::log::warn!(%queue, error = %text, wait = %format_args!("{wait:.1?}"), "fetching from the queue failed");
        executor.state.events.emit(|| Event::PollFailed { queue, error: text, retry_in: wait });
        tokio::time::sleep(wait).await;
    }

    /// Waits for at least one free slot. After a round that returned as many messages as requested, also
    /// waits briefly for more slots, so that a full worker does not request messages one at a time.
    async fn free_slots(&self, was_full: bool) -> Vec<Slot> {
        let mut slots = vec![self.slots.take().await];
        let limit = if was_full { MAX_MESSAGES * MAX_REQUESTS } else { MAX_MESSAGES } as usize;
        let (free, max) = self.slots.free_and_max();
        let enough = (max / 2).clamp(1, limit);
        if was_full && free + 1 < enough {
            let gather = async {
                while slots.len() < enough {
                    slots.push(self.slots.take().await);
                }
            };
            let _ = tokio::time::timeout(SLOT_GATHER_TIME, gather).await;
        }
        while slots.len() < limit
            && let Some(slot) = self.slots.try_take_further()
        {
            slots.push(slot);
        }
        slots
    }
}

#[derive(Debug, Default)]
struct Fetched {
    messages: usize,
    /// The time until the next message becomes visible, if the storage knows it.
    next_visible_in: Option<Duration>,
    /// True if visible messages may be missing from the answer.
    is_uncertain: bool,
    /// True if a shard of the queue was not asked, or did not answer.
    is_partial: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::Runtime;

    #[test]
    fn failures_and_probes_limit_a_round_to_one_message() {
        let idle = Idle::new(Runtime::new(), None, false, Duration::from_secs(5));
        let mut pace = Pace { idle, failures: 1, was_full: true };
        assert_eq!(pace.max_slots(Permit::Closed), 1);
        pace.failures = 0;
        assert_eq!(pace.max_slots(Permit::Closed), usize::MAX);
        pace.was_full = false;
        assert_eq!(pace.max_slots(Permit::Closed), MAX_MESSAGES as usize);
        assert_eq!(pace.max_slots(Permit::Probe), 1);
    }
}
