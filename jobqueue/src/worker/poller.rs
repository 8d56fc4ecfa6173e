//! Fetching messages of one queue, never more than there are free slots.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::activity::Activity;
use super::event::Event;
use super::registry::Lane;
use super::shared::Shared;
use crate::queue::Channel;
use crate::storage::MAX_MESSAGES;
use crate::vocabulary::outcome::chain;
use crate::vocabulary::retry::Backoff;

/// How long a queue that cannot be read is left alone: doubling to a minute.
const POLL_BACKOFF: Backoff = Backoff::exponential(Duration::from_millis(500), Duration::from_secs(60));
/// How long a full worker gathers free slots, so that it asks for many messages at once instead of one by one.
const GATHER: Duration = Duration::from_millis(2);

pub(super) struct Poller {
    pub(super) number: usize,
    pub(super) shared: Arc<Shared>,
    pub(super) channel: Arc<Channel>,
    pub(super) lane: Arc<Lane>,
    pub(super) slots: Arc<Semaphore>,
    pub(super) stop: CancellationToken,
    pub(super) tasks: TaskTracker,
    pub(super) activity: Arc<Activity>,
    /// Whether somebody waits for the queues to be empty.
    pub(super) until_idle: bool,
}

impl Poller {
    /// Polls until it is told to stop.
    pub(super) async fn run(self) {
        self.shared.events.tell(|| Event::Listening { queue: self.channel.name.clone() });
        let stop = self.stop.clone();
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.poll() => {}
        }
    }

    async fn poll(&self) {
        let mut idle = self.channel.idle(self.shared.options.max_idle_delay);
        let mut failures = 0;
        let mut was_full = false;
        loop {
            let settings = self.channel.fresh_settings().await;
            if settings.paused {
                self.activity.found_empty(self.number, self.activity.generation());
                idle.pause(None).await;
                continue;
            }
            let Some(mut slots) = self.free_slots(was_full).await else { return };
            let generation = self.activity.generation();
            let asked = slots.len() as u32;
            // Not cancelled in the middle: what is leased must be handled or released.
            let fetch = fetch(Arc::clone(&self.channel), asked, Arc::clone(&settings));
            let (received, requested) = match tokio::spawn(fetch).await {
                Ok(Ok(received)) => received,
                Ok(Err(error)) => {
                    drop(slots);
                    failures += 1;
                    let wait = error.retry_after().unwrap_or_else(|| POLL_BACKOFF.delay(failures) + GATHER);
                    let text = chain(&error);
                    tracing::warn!(queue = %self.channel.name, error = %text, ?wait, "queue not read");
                    self.shared.events.tell(|| Event::PollFailed {
                        queue: self.channel.name.clone(),
                        error: text,
                        retry_in: wait,
                    });
                    tokio::time::sleep(wait).await;
                    continue;
                }
                // The runtime is shutting down.
                Err(_) => return,
            };
            failures = 0;
            let next = received.next_visible_in;
            was_full = received.messages.len() as u32 == asked;
            if received.messages.is_empty() {
                drop(slots);
                self.activity.found_empty(self.number, generation);
                tokio::select! {
                    () = idle.pause(next) => {}
                    () = self.activity.quiet_after(generation), if self.until_idle => {}
                }
                continue;
            }
            idle.reset();
            self.activity.started(received.messages.len());
            for leased in received.messages {
                let Some(slot) = slots.pop() else { break };
                let (shared, channel, lane) =
                    (Arc::clone(&self.shared), Arc::clone(&self.channel), Arc::clone(&self.lane));
                let (activity, settings) = (Arc::clone(&self.activity), Arc::clone(&settings));
                self.tasks.spawn(async move {
                    let done = Done(activity, Some(slot));
                    super::run::deliver(shared, channel, &lane, leased, requested, settings).await;
                    drop(done);
                });
            }
        }
    }

    /// At least one free slot, at most 32. A worker that is full gathers some, so that it does not ask for messages one
    /// by one; it does not wait long for them.
    async fn free_slots(&self, was_full: bool) -> Option<Vec<OwnedSemaphorePermit>> {
        let mut first = Arc::clone(&self.slots).acquire_owned().await.ok()?;
        let enough = (self.shared.options.concurrency / 2).clamp(1, MAX_MESSAGES as usize);
        if was_full && self.slots.available_permits() + 1 < enough {
            let more = Arc::clone(&self.slots).acquire_many_owned(enough as u32 - 1);
            if let Ok(Ok(more)) = tokio::time::timeout(GATHER, more).await {
                first.merge(more);
            }
        }
        let mut slots = Vec::with_capacity(MAX_MESSAGES as usize);
        while let Some(slot) = first.split(1) {
            slots.push(slot);
        }
        while slots.len() < MAX_MESSAGES as usize
            && let Ok(slot) = Arc::clone(&self.slots).try_acquire_owned()
        {
            slots.push(slot);
        }
        Some(slots)
    }
}

/// Frees the slot, then tells that the job is over, also when the task is dropped.
struct Done(Arc<Activity>, Option<OwnedSemaphorePermit>);

impl Drop for Done {
    fn drop(&mut self) {
        self.1.take();
        self.0.finished();
    }
}

async fn fetch(
    channel: Arc<Channel>,
    count: u32,
    settings: Arc<crate::QueueSettings>,
) -> Result<(crate::storage::Received, tokio::time::Instant), crate::storage::StoreError> {
    channel.get(count, &settings).await
}
