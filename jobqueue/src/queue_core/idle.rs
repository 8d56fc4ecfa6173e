//! Waits for messages without polling all the time.

use std::time::Duration;

use crate::runtime::Runtime;
use crate::storage::Subscription;

/// The first pause after an empty answer.
const FIRST_IDLE_DELAY: Duration = Duration::from_millis(100);

/// The pause between two requests to an empty queue. If the storage cannot notify, the pause doubles up to a
/// maximum, with jitter. Otherwise a notification or the end of a message's delay ends it.
#[derive(Debug)]
pub(crate) struct Idle {
    runtime: Runtime,
    subscribe: Option<Subscription>,
    delay: Duration,
    max: Duration,
}

impl Idle {
    pub(crate) fn new(runtime: Runtime, subscribe: Option<Subscription>, max: Duration) -> Self {
        Self { runtime, subscribe, delay: FIRST_IDLE_DELAY.min(max), max }
    }

    /// Returns whether the storage announces messages.
    pub(crate) fn is_notified(&self) -> bool {
        self.subscribe.is_some()
    }

    /// Makes the next pause short again, because there was work.
    pub(crate) fn reset(&mut self) {
        self.delay = FIRST_IDLE_DELAY.min(self.max);
    }

    /// Pauses for the time between two requests, even if messages arrive. Cancel-safe.
    pub(crate) async fn nap(&mut self) {
        let jittered = self.runtime.jitter(self.delay, 0.75..=1.0);
        self.delay = (self.delay * 2).min(self.max);
        tokio::time::sleep(jittered).await;
    }

    /// Pauses until messages may have arrived. `next_visible_in` is the time until the next message becomes
    /// visible, if the storage knows it. Cancel-safe.
    pub(crate) async fn pause(&mut self, next_visible_in: Option<Duration>) {
        match &mut self.subscribe {
            None => self.nap().await,
            Some(subscribe) => {
                // The notifier reports new messages at once, so the timer is needed only for delays.
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
