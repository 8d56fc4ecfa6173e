//! Fetching messages of one queue, never more than there are free slots.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use super::circuit::{Circuit, Permit};
use super::deliveries::Deliveries;
use super::event::Event;
use super::fetch::{MAX_REQUESTS, fetch};
use super::shared::Shared;
use super::single_message_fallback::SingleMessageFallback;
use super::slot::{Occupied, Slots};
use crate::job::outcome::chain;
use crate::job::retry::Backoff;
use crate::queue::QueueCore;
use crate::settings::QueueSettings;
use crate::storage::{LeasedMessage, MAX_MESSAGES, StoreError, StoreErrorKind};

/// How long a queue that cannot be read is left alone: doubling to a minute.
const POLL_BACKOFF: Backoff = Backoff::exponential(Duration::from_millis(500), Duration::from_secs(60));
/// How long a full worker gathers free slots, so that it asks for many messages at once instead of one by one.
const GATHER: Duration = Duration::from_millis(2);

pub(super) struct Poller {
    pub(super) number: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) core: Arc<QueueCore>,
    pub(super) slots: Slots,
    pub(super) circuit: Arc<Circuit>,
    pub(super) stop: CancellationToken,
    pub(super) deliveries: Arc<Deliveries>,
    pub(super) activity: Arc<Activity>,
    /// Whether somebody waits for the queues to be empty.
    pub(super) until_idle: bool,
}

impl Poller {
    /// Polls until it is told to stop.
    pub(super) async fn run(self) {
        self.shared.events.tell(|| Event::Listening { queue: self.core.name.clone() });
        let mut idle = self.core.idle(self.shared.options.max_idle_delay);
        let mut failures = 0;
        let mut was_full = false;
        let mut single_message_fallback = SingleMessageFallback::default();
        // Only waiting is interrupted by the end: what a request has leased must be handled or put back.
        while let Some(settings) = self.unless_stopped(self.calm_settings()).await {
            if settings.paused {
                self.activity.found_empty(self.number, self.activity.generation());
                self.unless_stopped(idle.pause(None)).await;
                continue;
            }
            let probe = match self.circuit.permit() {
                Permit::Closed => false,
                Permit::Probe => true,
                Permit::OpenUntil(until) => {
                    self.unless_stopped(tokio::time::sleep_until(until)).await;
                    continue;
                }
                Permit::Probing => {
                    self.unless_stopped(self.circuit.ended()).await;
                    continue;
                }
            };
            let Some(Some(mut slots)) = self.unless_stopped(self.free_slots(was_full)).await else { return };
            if probe {
                slots.truncate(1);
            }
            let at_most = single_message_fallback.at_most();
            if failures > 0 || !was_full {
                // One request tells whether a storage that failed is well again, and whether a queue is empty.
                slots.truncate(at_most as usize);
            }
            let generation = self.activity.generation();
            let asked = slots.len();
            let fetched = fetch(Arc::clone(&self.core), asked as u32, at_most, Arc::clone(&settings)).await;
            let fetched = match fetched {
                Ok(fetched) => fetched,
                // Asking again would be for nothing for ever.
                Err(error) if error.kind() == StoreErrorKind::Stopped => {
                    self.shared.fail(error);
                    return self.stop.cancel();
                }
                Err(error) => {
                    drop(slots);
                    failures += 1;
                    single_message_fallback.note(&error, settings.timeout);
                    self.unless_stopped(self.back_off(&error, failures)).await;
                    continue;
                }
            };
            failures = 0;
            if let Some(error) = &fetched.failed {
                single_message_fallback.note(error, settings.timeout);
            }
            was_full = fetched.messages.len() == asked;
            if fetched.messages.is_empty() {
                drop(slots);
                self.activity.found_empty(self.number, generation);
                let next = fetched.next_visible_in;
                let pause = async {
                    tokio::select! {
                        biased;
                        () = idle.pause(next) => {}
                        () = self.activity.quiet_after(generation), if self.until_idle => {}
                    }
                };
                self.unless_stopped(pause).await;
                continue;
            }
            idle.reset();
            if probe {
                self.circuit.probe();
            }
            self.activity.started(fetched.messages.len());
            for (leased, requested) in fetched.messages {
                let Some(slot) = slots.pop() else { break };
                self.start(leased, requested, &settings, slot);
            }
        }
    }

    /// The queue's settings, once the storage is not under pressure.
    async fn calm_settings(&self) -> Arc<QueueSettings> {
        self.core.storage.throttle().until_ready().await;
        self.core.fresh_settings().await
    }

    async fn unless_stopped<T>(&self, waiting: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
            done = waiting => Some(done),
        }
    }

    async fn back_off(&self, error: &StoreError, failures: u32) {
        let wait = error.retry_after().unwrap_or_else(|| POLL_BACKOFF.delay(failures) + GATHER);
        let text = chain(error);
        let queue = self.core.name.clone();
        tracing::warn!(%queue, error = %text, ?wait, "queue not read");
        self.shared.events.tell(|| Event::PollFailed { queue, error: text, retry_in: wait });
        tokio::time::sleep(wait).await;
    }

    fn start(
        &self,
        leased: LeasedMessage,
        requested: Instant,
        settings: &Arc<QueueSettings>,
        slot: OwnedSemaphorePermit,
    ) {
        let done = Done(Arc::clone(&self.activity), Some(self.slots.occupied(slot)));
        self.deliveries.start(leased, requested, Arc::clone(settings), done);
    }

    /// At least one free slot; many after a round that brought all that was asked for. A worker that is full gathers some,
    /// so that it does not ask for messages one by one; it does not wait long for them.
    async fn free_slots(&self, was_full: bool) -> Option<Vec<OwnedSemaphorePermit>> {
        let mut first = self.slots.take(1).await.ok()?;
        let most = if was_full { MAX_MESSAGES * MAX_REQUESTS } else { MAX_MESSAGES };
        let enough = (self.shared.options.concurrency / 2).clamp(1, most as usize);
        if was_full && self.slots.free() + 1 < enough {
            let more = self.slots.take(enough as u32 - 1);
            if let Ok(Ok(more)) = tokio::time::timeout(GATHER, more).await {
                first.merge(more);
            }
        }
        let mut slots = Vec::with_capacity(most as usize);
        while let Some(slot) = first.split(1) {
            slots.push(slot);
        }
        while slots.len() < most as usize
            && let Ok(slot) = self.slots.try_take()
        {
            slots.push(slot);
        }
        Some(slots)
    }
}

/// Frees the slot, then tells that the job is over, also when the task is dropped.
pub(super) struct Done(Arc<Activity>, Option<Occupied>);

impl Done {
    /// The handler is done, its message is about to be deleted.
    pub(super) fn handler_is_done(&self) {
        if let Some(slot) = &self.1 {
            slot.handler_is_done();
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        self.1.take();
        self.0.finished();
    }
}
