//! Leases messages, and waits for them without polling all the time.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::queue_core::QueueCore;
use crate::entropy;
use crate::event::Event;
use crate::settings::QueueSettings;
use crate::storage::{GetMessages, MAX_MESSAGES, Received, StoreError, Subscription};
use crate::trace::Step;

/// The first pause after an empty answer.
pub(crate) const FIRST_IDLE_DELAY: Duration = Duration::from_millis(100);

impl QueueCore {
    /// Leases up to `count` messages. Also returns the time before the request, from which deadlines are counted.
    pub(crate) async fn get(
        &self,
        count: u32,
        settings: &QueueSettings,
    ) -> Result<(Received, Instant), StoreError> {
        let options = GetMessages { count: count.clamp(1, MAX_MESSAGES), visibility: settings.timeout };
        let requested = Instant::now();
        let since = self.observers().trace().then(SystemTime::now);
        let received = self.store().get(&self.name, options).await;
        self.tell_received(requested, since, received.as_ref());
        Ok((received?, requested))
    }

    /// Tells the observers of the answer to a request for messages.
    fn tell_received(
        &self,
        requested: Instant,
        since: Option<SystemTime>,
        received: Result<&Received, &StoreError>,
    ) {
        let (queue, observers) = (&self.name, self.observers());
        let messages = received.map_or(0, |received| received.messages.len());
        if let Some(since) = since {
            let error = received.err().map(|error| error.kind().as_str());
            observers.span(|| Step::Receive { queue, since, messages }).end(None, error);
        }
        if received.is_ok() {
            observers.tell(|| Event::Received { queue: queue.clone(), messages, took: requested.elapsed() });
        }
    }

    /// Returns a pause between requests to an empty queue, of at most `max` each.
    pub(crate) fn idle(self: &Arc<Self>, max: Duration) -> Idle {
        Idle { subscribe: self.store().subscribe(&self.name), delay: FIRST_IDLE_DELAY.min(max), max }
    }
}

/// The pause between two requests to an empty queue. It doubles up to a maximum, with jitter. A notification of the
/// storage or the end of a message's delay cuts it short.
#[derive(Debug)]
pub(crate) struct Idle {
    subscribe: Option<Subscription>,
    delay: Duration,
    max: Duration,
}

impl Idle {
    /// Makes the next pause short again, because there was work.
    pub(crate) fn reset(&mut self) {
        self.delay = FIRST_IDLE_DELAY.min(self.max);
    }

    /// Pauses. `next_visible_in` is the storage's answer about the next message. Cancel-safe.
    pub(crate) async fn pause(&mut self, next_visible_in: Option<Duration>) {
        let jittered = entropy::jitter(self.delay, 0.75..=1.0);
        self.delay = (self.delay * 2).min(self.max);
        match &mut self.subscribe {
            None => tokio::time::sleep(jittered).await,
            Some(subscribe) => {
                // The notifier reports new messages at once, so the clock is needed for delays only.
                let longest = self.max.max(Duration::from_secs(5));
                let wait = next_visible_in.map_or(longest, |wait| wait.min(longest));
                tokio::select! {
                    biased;
                    () = subscribe.wait() => {}
                    () = tokio::time::sleep(wait.max(Duration::from_millis(1))) => {}
                }
            }
        }
    }
}
