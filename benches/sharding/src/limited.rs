//! An account with limits: queues in memory behind token buckets, with the latency of a network.
//!
//! A request takes one token of its account, and one token of its queue for each message that it moves, at
//! least one. Without a token it is refused as Azure does, with 503 Server Busy and no effect.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use jobqueue::QueueName;
use jobqueue::settings::Metadata;
use jobqueue::storage::{
    Batches, Created, ExpiredReceipt, GetMessages, MessageRef, PeekedMessage, PutMessage, PutOutcome,
    QueuePowers, QueueProperties, QueueStore, Received, Storage, StoreError, StoreErrorKind, UpdateMessage,
    Updated,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::Instant;

/// The rates per second that Azure serves.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    /// The messages of a queue.
    pub queue: f64,
    /// The requests of an account.
    pub account: f64,
    /// A queue with another rate.
    pub slow: Option<(String, f64)>,
}

impl Default for Limits {
    fn default() -> Self {
        Self { queue: 2_000.0, account: 20_000.0, slow: None }
    }
}

/// Tokens that arrive at a steady rate. The bucket keeps at most those of a tenth of a second.
#[derive(Debug)]
struct Bucket {
    rate: f64,
    tokens: f64,
    filled: Instant,
}

impl Bucket {
    fn new(rate: f64) -> Self {
        Self { rate, tokens: rate / 10.0, filled: Instant::now() }
    }

    fn fill(&mut self) {
        let now = Instant::now();
        let come = self.rate * (now - self.filled).as_secs_f64();
        self.tokens = (self.tokens + come).min(self.rate / 10.0);
        self.filled = now;
    }
}

/// The counts of an account.
#[derive(Debug, Default, Clone)]
pub(crate) struct Counts {
    /// Requests that were served.
    pub requests: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Messages deleted, by physical queue.
    pub deleted: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct State {
    account: Bucket,
    queues: BTreeMap<String, Bucket>,
    random: StdRng,
    counts: Counts,
}

/// The queues of an account.
#[derive(Debug)]
pub(crate) struct Limited {
    inner: Arc<dyn QueueStore>,
    limits: Limits,
    state: Mutex<State>,
}

impl Limited {
    /// Puts limits around a storage; latencies follow `seed`.
    pub(crate) fn new(storage: &Storage, limits: Limits, seed: u64) -> Arc<Self> {
        let state = State {
            account: Bucket::new(limits.account),
            queues: BTreeMap::new(),
            random: StdRng::seed_from_u64(seed),
            counts: Counts::default(),
        };
        Arc::new(Self { inner: Arc::clone(storage.queues().store()), limits, state: Mutex::new(state) })
    }

    /// Returns the counts so far.
    pub(crate) fn counts(&self) -> Counts {
        self.with(|state| state.counts.clone())
    }

    fn with<T>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        action(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Waits for the latency of the way there, then decides whether the request is served. The short way back
    /// is included.
    async fn ask(&self, queue: &QueueName, operation: &'static str) -> Result<(), StoreError> {
        // Most answers in 5 to 15 ms, few in up to 60.
        let latency = self.with(|state| 4.0 - 5.0 * state.random.random_range(1e-5_f64..1.0).ln());
        tokio::time::sleep(Duration::from_secs_f64(latency / 1000.0)).await;
        let rate = match &self.limits.slow {
            Some((slow, rate)) if slow == queue.as_str() => *rate,
            _ => self.limits.queue,
        };
        self.with(|state| {
            let name = queue.as_str();
            if !state.queues.contains_key(name) {
                state.queues.insert(name.to_owned(), Bucket::new(rate));
            }
            let Some(bucket) = state.queues.get_mut(name) else { return Ok(()) };
            bucket.fill();
            state.account.fill();
            if bucket.tokens < 1.0 || state.account.tokens < 1.0 {
                state.counts.refused += 1;
                return Err(StoreError::new(StoreErrorKind::Throttled, operation, queue));
            }
            bucket.tokens -= 1.0;
            state.account.tokens -= 1.0;
            state.counts.requests += 1;
            Ok(())
        })
    }

    /// Takes a token for each message that a get returns, from the future if necessary.
    fn brought(&self, queue: &QueueName, messages: usize) {
        self.with(|state| {
            if let Some(bucket) = state.queues.get_mut(queue.as_str()) {
                bucket.tokens -= messages.saturating_sub(1) as f64;
            }
        });
    }
}

#[async_trait]
impl QueueStore for Limited {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        self.inner.create_queue(queue, metadata).await
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.inner.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        self.inner.list_queues(prefix).await
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        self.inner.queue_properties(queue).await
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.inner.set_queue_metadata(queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        self.ask(queue, "put message").await?;
        self.inner.put(queue, message).await
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        self.ask(queue, "get messages").await?;
        let received = self.inner.get(queue, options).await?;
        self.brought(queue, received.messages.len());
        // Azure does not tell when the next one will be visible.
        Ok(received.with_next_visible_in(None))
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        self.ask(queue, "peek messages").await?;
        self.inner.peek(queue, count).await
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        self.ask(queue, "update message").await?;
        self.inner.update(queue, message, change).await
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        self.ask(queue, "delete message").await?;
        self.inner.delete(queue, message, expired).await?;
        self.with(|state| *state.counts.deleted.entry(queue.as_str().to_owned()).or_default() += 1);
        Ok(())
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.inner.clear(queue).await
    }

    /// Azure has no request for many messages, no notifications, and does not check expiry.
    fn powers(self: Arc<Self>) -> QueuePowers {
        QueuePowers { batches: Some(self), ..QueuePowers::default() }
    }
}

#[async_trait]
impl Batches for Limited {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        futures_util::future::join_all(messages.iter().map(|message| self.put(queue, message.clone()))).await
    }

    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let deletes = messages.iter().map(|message| self.delete(queue, message, expired));
        futures_util::future::join_all(deletes).await
    }
}
