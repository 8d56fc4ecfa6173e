//! Wakes callers that wait for messages of a queue.

use std::collections::HashMap;
use std::fmt;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::name::QueueName;
use crate::sync::lock;

/// The sending side of notifications; each queue of a storage has a notifier. Cheap to clone.
#[derive(Debug, Default)]
pub struct Notifier(Arc<NotifierState>);

/// The state that a notifier shares with its subscriptions. A `watch` channel would wake its waiters in a
/// random order, but simulations must be repeatable.
#[derive(Debug, Default)]
struct NotifierState {
    count: AtomicU64,
    waiting: Notify,
    /// The number of subscriptions that wait.
    waiters: AtomicUsize,
    listeners: AtomicUsize,
    /// Notified when the last listener is dropped.
    unheard: Notify,
}

impl Notifier {
    /// Returns a notifier without subscriptions.
    pub fn new() -> Self {
        Self::default()
    }

    /// Wakes every waiting subscription; for the others, the next wait returns at once.
    pub fn notify(&self) {
        self.0.count.fetch_add(1, Ordering::AcqRel);
        self.0.waiting.notify_waiters();
    }

    /// Notifies if a subscription waits at this moment, and returns whether it does.
    pub fn wake(&self) -> bool {
        let is_awaited = self.0.waiters.load(Ordering::Acquire) > 0;
        if is_awaited {
            self.notify();
        }
        is_awaited
    }

    /// Returns the number of notifications so far.
    pub fn count(&self) -> u64 {
        self.0.count.load(Ordering::Acquire)
    }

    /// Returns whether there is a subscription.
    pub fn has_subscribers(&self) -> bool {
        self.0.listeners.load(Ordering::Acquire) > 0
    }

    /// Waits until there is no subscription.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn unsubscribed(&self) {
        loop {
            let mut unheard = pin!(self.0.unheard.notified());
            // Registered before the number of subscriptions is read, so that no drop between the two is
            // missed.
            unheard.as_mut().enable();
            if !self.has_subscribers() {
                return;
            }
            unheard.await;
        }
    }

    /// Returns a subscription to the notifications from now on.
    pub fn subscribe(&self) -> Subscription {
        let heard = self.0.count.load(Ordering::Acquire);
        Subscription { listeners: vec![Listener::new(&self.0, heard)], parts: None }
    }
}

/// The notifiers of a process for the queues to which it has subscribed.
#[derive(Debug, Default)]
pub struct Notifiers(Mutex<HashMap<QueueName, Notifier>>);

impl Notifiers {
    /// Returns no notifiers.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns a subscription to a queue.
    pub fn subscribe(&self, queue: &QueueName) -> Subscription {
        lock(&self.0).entry(queue.clone()).or_default().subscribe()
    }

    /// Wakes the subscriptions to a queue.
    pub fn notify(&self, queue: &QueueName) {
        if let Some(notifier) = lock(&self.0).get(queue) {
            notifier.notify();
        }
    }
}

/// The receiving side of notifications. It remembers a notification since the last wait, so that a message
/// that arrives between a poll of the queue and the wait is not missed.
#[derive(Debug, Clone)]
pub struct Subscription {
    listeners: Vec<Listener>,
    parts: Option<FollowedParts>,
}

/// The parts of a queue, each with notifications of its own, which may change while callers wait.
pub(crate) trait QueueParts: fmt::Debug + Send + Sync {
    /// Returns the maximum time of a wait, after which the caller asks the queue again, and so learns whether
    /// the parts have changed.
    fn check_interval(&self) -> Duration;

    /// Returns a number that changes with the parts.
    fn version(&self) -> u64;

    /// Returns the subscriptions to the present parts.
    fn subscribe(&self) -> Vec<Subscription>;
}

#[derive(Debug, Clone)]
struct FollowedParts {
    parts: Arc<dyn QueueParts>,
    /// The version of the parts to which `listeners` belong.
    version: u64,
    listeners: Vec<Listener>,
}

impl FollowedParts {
    fn new(parts: Arc<dyn QueueParts>) -> Self {
        let version = parts.version();
        let listeners = parts.subscribe().into_iter().flat_map(|part| part.listeners).collect();
        Self { parts, version, listeners }
    }
}

#[derive(Debug)]
struct Listener {
    shared: Arc<NotifierState>,
    /// The number of notifications received.
    heard: u64,
}

impl Listener {
    fn new(shared: &Arc<NotifierState>, heard: u64) -> Self {
        shared.listeners.fetch_add(1, Ordering::AcqRel);
        Self { shared: Arc::clone(shared), heard }
    }

    /// Counts the notifications until now as received.
    fn hear_all(&mut self) {
        self.heard = self.shared.count.load(Ordering::Acquire);
    }

    async fn wait(&mut self) {
        self.shared.waiters.fetch_add(1, Ordering::AcqRel);
        let _counted = scopeguard::guard(&self.shared.waiters, |waiters| {
            waiters.fetch_sub(1, Ordering::AcqRel);
        });
        loop {
            let mut notified = pin!(self.shared.waiting.notified());
            // Registered before the count is read, so that no notification between the two is missed.
            notified.as_mut().enable();
            let count = self.shared.count.load(Ordering::Acquire);
            if count != self.heard {
                self.heard = count;
                return;
            }
            notified.await;
        }
    }
}

impl Clone for Listener {
    fn clone(&self) -> Self {
        Self::new(&self.shared, self.heard)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if self.shared.listeners.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.shared.unheard.notify_waiters();
        }
    }
}

impl Subscription {
    /// Adds the notifications of parts that may change. A wait then ends without a notification when the parts
    /// have changed, and at the check interval of the parts.
    #[must_use]
    pub(crate) fn with_parts(mut self, parts: Arc<dyn QueueParts>) -> Self {
        self.parts = Some(FollowedParts::new(parts));
        self
    }

    /// Waits until a notification has arrived since the last call; waits forever if the storage is gone.
    /// Notifications of several parts of a queue that have arrived by then count as one: the caller polls
    /// after all of them.
    ///
    /// # Cancel safety
    /// A notification is not lost if the future is dropped before it resolves.
    pub async fn wait(&mut self) {
        let Some(followed) = &mut self.parts else { return wait_for_any(&mut self.listeners).await };
        if followed.version != followed.parts.version() {
            *followed = FollowedParts::new(Arc::clone(&followed.parts));
            // A message may have arrived in a new part before the subscription to it.
            return;
        }
        let all = self.listeners.iter_mut().chain(&mut followed.listeners);
        let _ = timeout(followed.parts.check_interval(), wait_for_any(all)).await;
    }
}

async fn wait_for_any<'l>(listeners: impl IntoIterator<Item = &'l mut Listener>) {
    let mut listeners: Vec<_> = listeners.into_iter().collect();
    let waits: Vec<_> = listeners.iter_mut().map(|listener| Box::pin(listener.wait())).collect();
    if waits.is_empty() {
        std::future::pending::<()>().await;
    }
    futures_util::future::select_all(waits).await;
    for listener in listeners {
        listener.hear_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct OnePart(Notifier);

    impl QueueParts for OnePart {
        fn check_interval(&self) -> Duration {
            Duration::from_secs(30)
        }

        fn version(&self) -> u64 {
            0
        }

        fn subscribe(&self) -> Vec<Subscription> {
            vec![self.0.subscribe()]
        }
    }

    // A put into a shard notifies twice: of the shard and of its queue.
    #[tokio::test(start_paused = true)]
    async fn notifications_of_a_part_and_its_queue_wake_once() {
        let (shard, queue) = (Arc::new(OnePart(Notifier::new())), Notifier::new());
        let mut joined = queue.subscribe().with_parts(Arc::<OnePart>::clone(&shard));
        shard.0.notify();
        queue.notify();
        joined.wait().await;
        let again = timeout(Duration::from_secs(1), joined.wait()).await;
        assert!(again.is_err(), "the second notification belongs to the same message");
        for notifier in [&shard.0, &queue] {
            notifier.notify();
            timeout(Duration::from_secs(1), joined.wait()).await.unwrap();
        }
    }
}
