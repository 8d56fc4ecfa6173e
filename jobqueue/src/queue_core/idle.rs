//! Waits for messages without polling all the time.

use std::time::Duration;

use crate::runtime::Runtime;
use crate::storage::Subscription;

/// The first pause after an empty answer.
const FIRST_IDLE_DELAY: Duration = Duration::from_millis(100);

/// The longest pause while notifications come, unless the maximum is longer: a message whose delay ends is not
/// announced.
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// The pause between two requests to an empty queue. It doubles up to a maximum, with jitter, unless the
/// storage announces all messages. A notification ends it.
#[derive(Debug)]
pub(crate) struct Idle {
    runtime: Runtime,
    subscription: Option<Subscription>,
    /// True if the storage announces all messages: then only the end of a message's delay needs a request
    /// without a notification.
    announces_all: bool,
    delay: Duration,
    max: Duration,
}

impl Idle {
    pub(crate) fn new(
        runtime: Runtime,
        subscription: Option<Subscription>,
        announces_all: bool,
        max: Duration,
    ) -> Self {
        Self { runtime, subscription, announces_all, delay: FIRST_IDLE_DELAY.min(max), max }
    }

    /// Returns whether the storage announces the messages of all processes.
    pub(crate) fn announces_all(&self) -> bool {
        self.announces_all
    }

    /// Waits for a notification; for ever on a storage that announces nothing. Cancel-safe.
    pub(crate) async fn notified(&mut self) {
        match &mut self.subscription {
            Some(subscription) => subscription.wait().await,
            None => std::future::pending().await,
        }
    }

    /// Makes the next pause short again, because there was work.
    pub(crate) fn reset(&mut self) {
        self.delay = FIRST_IDLE_DELAY.min(self.max);
    }

    /// Pauses for the time between two requests, even if messages arrive. Cancel-safe.
    pub(crate) async fn nap(&mut self) {
        tokio::time::sleep(self.next_delay()).await;
    }

    fn next_delay(&mut self) -> Duration {
        let jittered = self.runtime.jitter(self.delay, 0.75..=1.0);
        self.delay = (self.delay * 2).min(self.max);
        jittered
    }

    /// Pauses until messages may have arrived. `next_visible_in` is the time until the next message becomes
    /// visible, if the storage knows it. Cancel-safe.
    pub(crate) async fn pause(&mut self, next_visible_in: Option<Duration>) {
        let wait = if self.announces_all {
            let longest = self.max.max(MAX_PAUSE);
            next_visible_in.map_or(longest, |wait| wait.min(longest)).max(Duration::from_millis(1))
        } else {
            self.next_delay()
        };
        match &mut self.subscription {
            None => tokio::time::sleep(wait).await,
            Some(subscription) => tokio::select! {
                biased;
                () = subscription.wait() => {}
                () = tokio::time::sleep(wait) => {}
            },
        }
    }
}
