//! Measures a storage's load by its answers, and tells callers that can wait how long to wait.
//!
//! Renewing and settling leases cannot wait; polling and sending can. [`Observed`] reads every answer of the queues,
//! whoever asked. Callers that can wait call [`Throttle::until_ready`] before they send. The module knows nothing of
//! workers.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::{
    Access, Created, ExpiredReceipt, GetMessages, MessageRef, PeekedMessage, PutMessage, PutOutcome,
    QueueProperties, QueueStore, Received, StoreError, Subscription, UpdateMessage, Updated,
};
use crate::entropy;
use crate::job::retry::Backoff;
use crate::name::QueueName;
use crate::settings::metadata::Metadata;
use crate::sync::lock;

/// The pause when the storage names none: from a second doubling to a minute.
const BACKOFF: Backoff = Backoff::exponential(Duration::from_secs(1), Duration::from_secs(60));

/// The shortest pause, and the longest that the storage may ask for.
const BOUNDS: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(300));

/// The load of one storage, shared by all its users in this process.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    state: Mutex<State>,
    /// True if the storage is sharded. A throttled request for a single message then says nothing about the other
    /// shards; a throttled get or put has tried all of them.
    of_shards: bool,
}

#[derive(Debug, Default)]
struct State {
    /// The time until which callers that can wait do so.
    until: Option<Instant>,
    /// The number of times the storage has throttled again after a pause.
    repeated: u32,
}

impl Throttle {
    /// Returns the load of a sharded storage.
    pub(crate) fn of_shards() -> Self {
        Self { of_shards: true, ..Self::default() }
    }

    /// Returns the time for which callers that can wait should still wait.
    pub(crate) fn left(&self) -> Duration {
        let state = lock(&self.state);
        state.until.map_or(Duration::ZERO, |until| until.saturating_duration_since(Instant::now()))
    }

    /// Waits until the storage may receive requests that can wait. Waiting callers do not all continue at the same
    /// moment.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub(crate) async fn until_ready(&self) {
        loop {
            let left = self.left();
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(entropy::jitter(left, 1.0..1.2)).await;
        }
    }

    fn note<T>(&self, answer: &Result<T, StoreError>, may_wait: bool) {
        match answer {
            Err(error) if error.is_throttled() && (may_wait || !self.of_shards) => {
                self.throttled(error.retry_after())
            }
            // A successful renewal says nothing about polling.
            Ok(_) if may_wait => lock(&self.state).repeated = 0,
            _ => {}
        }
    }

    fn throttled(&self, asked: Option<Duration>) {
        let mut state = lock(&self.state);
        let now = Instant::now();
        // Requests that ran at the same time count as one occasion.
        if state.until.is_none_or(|until| until <= now) {
            state.repeated = state.repeated.saturating_add(1);
        } else if asked.is_none() {
            return;
        }
        let wait = asked.unwrap_or_else(|| BACKOFF.delay(state.repeated)).clamp(BOUNDS.0, BOUNDS.1);
        state.until = state.until.max(Some(now + wait));
        tracing::warn!(?wait, "the storage asks to slow down; polling and sending wait, leases are kept");
    }
}

/// A queue store that records the storage's answers.
#[derive(Debug)]
pub(super) struct Observed {
    inner: Arc<dyn QueueStore>,
    throttle: Arc<Throttle>,
}

impl Observed {
    pub(super) fn new(inner: Arc<dyn QueueStore>, throttle: Arc<Throttle>) -> Self {
        Self { inner, throttle }
    }

    fn noted<T>(&self, answer: Result<T, StoreError>, may_wait: bool) -> Result<T, StoreError> {
        self.throttle.note(&answer, may_wait);
        answer
    }
}

#[async_trait]
#[deny(clippy::missing_trait_methods)]
impl QueueStore for Observed {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.noted(self.inner.create_queue(queue, metadata).await, false)
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.noted(self.inner.delete_queue(queue).await, false)
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.noted(self.inner.list_queues(prefix).await, false)
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.noted(self.inner.queue_properties(queue).await, false)
    }

    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.noted(self.inner.queue_metadata(queue).await, false)
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.noted(self.inner.set_queue_metadata(queue, metadata).await, false)
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.noted(self.inner.put(queue, message).await, true)
    }

    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let answers = self.inner.put_all(queue, messages).await;
        answers.iter().for_each(|answer| self.throttle.note(answer, true));
        answers
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.noted(self.inner.get(queue, options).await, true)
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.noted(self.inner.peek(queue, count).await, true)
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        self.noted(self.inner.update(queue, message, change).await, false)
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.noted(self.inner.delete(queue, message, expired).await, false)
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let answers = self.inner.delete_all(queue, messages, expired).await;
        answers.iter().for_each(|answer| self.throttle.note(answer, false));
        answers
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.noted(self.inner.clear(queue).await, false)
    }

    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        self.noted(self.inner.check_access(queue, access).await, false)
    }

    fn subscribe(&self, queue: &QueueName) -> Option<Subscription> {
        self.inner.subscribe(queue)
    }

    fn checks_expiry(&self) -> bool {
        self.inner.checks_expiry()
    }

    fn commits_together(&self) -> bool {
        self.inner.commits_together()
    }

    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore> {
        let inner = Arc::clone(&self.inner).detached();
        Arc::new(Self { inner, throttle: Arc::clone(&self.throttle) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::storage::StoreErrorKind;

    fn after(throttle: &Throttle, may_wait: bool) -> Duration {
        let throttled = StoreError::new(StoreErrorKind::Throttled, "delete message", "work");
        throttle.note::<()>(&Err(throttled), may_wait);
        throttle.left()
    }

    // F86
    #[tokio::test(start_paused = true)]
    async fn refused_message_on_one_shard_throttles_no_other() {
        let (one, sharded) = (Throttle::default(), Throttle::of_shards());
        assert!(!after(&one, false).is_zero());
        assert!(after(&sharded, false).is_zero());
        // A failed get or put has tried all shards.
        assert!(!after(&sharded, true).is_zero());
    }
}
