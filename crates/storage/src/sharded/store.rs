//! Implements the queue half of the port over shards.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;

use super::map::{Shard, is_shard};
use super::maps::Maps;
use super::place::{inner, outer_id};
use super::{Builder, Unpolled};
use crate::name::QueueName;
use crate::rules::limits;
use crate::sync::lock;
use crate::{
    Created, ExpiredReceipt, GetMessages, MessageRef, Metadata, Notifier, PeekedMessage, PutMessage,
    PutOutcome, QueuePowers, QueueProperties, QueueStore, Received, StoreError, StoreErrorKind as K, Stores,
    Subscription, UpdateMessage, Updated,
};

/// The number of shards that are asked at once.
pub(super) const WAVE: usize = 8;

#[derive(Debug)]
pub(super) struct ShardedQueues {
    pub(super) maps: Maps,
    /// The counter that chooses the next shard in turn.
    pub(super) turn: AtomicUsize,
    notifiers: Mutex<HashMap<QueueName, Notifier>>,
}

impl ShardedQueues {
    pub(super) fn new(options: Builder) -> Self {
        Self::over(Maps::new(options))
    }

    pub(super) fn over(maps: Maps) -> Self {
        Self { maps, turn: AtomicUsize::new(0), notifiers: Mutex::default() }
    }

    pub(super) fn home(&self) -> &Stores {
        self.maps.home()
    }

    pub(super) fn accounts(&self) -> usize {
        self.maps.options.accounts.len()
    }

    pub(super) async fn reshard(&self, queue: &QueueName, shards: u32) -> Result<(), StoreError> {
        self.maps.reshard(queue, shards).await
    }

    pub(super) async fn retire(&self, queue: &QueueName) -> Result<usize, StoreError> {
        self.maps.retire(queue).await
    }

    pub(super) async fn health(&self, queue: &QueueName, within: Duration) -> Result<(), Unpolled> {
        self.maps.health(queue, within).await
    }

    pub(super) async fn all_shards(&self, queue: &QueueName) -> Result<Vec<Shard>, StoreError> {
        Ok(self.maps.map(queue).await?.shards(self.maps.home_name()))
    }

    /// Returns a subscription to the messages that this process puts.
    pub(super) fn own_subscription(&self, queue: &QueueName) -> Subscription {
        lock(&self.notifiers).entry(queue.clone()).or_default().subscribe()
    }

    fn notify(&self, queue: &QueueName) {
        if let Some(notifier) = lock(&self.notifiers).get(queue) {
            notifier.notify();
        }
    }

    /// Returns all known shards. Reading continues while the map cannot be read.
    pub(super) async fn readable_shards(&self, queue: &QueueName) -> Result<Vec<Shard>, StoreError> {
        Ok(self.maps.newest_known(queue).await?.shards(self.maps.home_name()))
    }

    /// Returns the shard of a message, and the message as the shard knows it. A message never moves, so the last map
    /// that was read is good enough, however old it is.
    pub(super) async fn find(
        &self,
        operation: &'static str,
        queue: &QueueName,
        message: &MessageRef,
    ) -> Result<(Shard, MessageRef), StoreError> {
        // The id is not one of ours: the home queue answers for it.
        let (generation, number, message) = inner(message).unwrap_or_else(|| (0, 0, message.clone()));
        let it = |shard: &Shard| (shard.generation, shard.number) == (generation, number);
        if let Some(shard) = self.maps.known_shards(queue).into_iter().find(it) {
            return Ok((shard, message));
        }
        match self.maps.fresh(queue).await?.shards(self.maps.home_name()).into_iter().find(it) {
            Some(shard) => Ok((shard, message)),
            None => Err(self.gone(operation, queue).await),
        }
    }

    /// Returns the error for a message that no shard has: `MessageNotFound`, if its queue exists.
    async fn gone(&self, operation: &'static str, queue: &QueueName) -> StoreError {
        let there = self.home().queues.queue_metadata(queue).await;
        there.err().unwrap_or_else(|| StoreError::new(K::MessageNotFound, operation, queue))
    }

    /// Returns the error of an operation on a message of `shard`. The messages of a shard that was retired since the
    /// map was read are gone with it.
    pub(super) async fn unless_retired(
        &self,
        operation: &'static str,
        queue: &QueueName,
        shard: &Shard,
        error: StoreError,
    ) -> StoreError {
        if error.kind() != K::QueueNotFound || shard.generation == 0 {
            return error;
        }
        match self.maps.fresh(queue).await {
            Ok(map) if !map.shards(self.maps.home_name()).contains(shard) => {
                self.gone(operation, queue).await
            }
            _ => error,
        }
    }
}

#[async_trait]
impl QueueStore for ShardedQueues {
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError> {
        if is_shard(queue) {
            let error = StoreError::new(K::InvalidInput, "create queue", queue);
            return Err(error.with_detail(
                "the name has the ending of a shard's name (`-s<shard>v<generation>`); choose another",
            ));
        }
        let created = self.home().queues.create_queue(queue, metadata).await?;
        self.maps.fresh(queue).await?;
        Ok(created)
    }

    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError> {
        // The dead letters of shards go with the shards.
        if self.maps.queue_of(queue) == Cow::Borrowed(queue) {
            self.maps.delete_shards(queue).await?;
        }
        self.home().queues.delete_queue(queue).await
    }

    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
        let names = self.home().queues.list_queues(prefix).await?;
        Ok(names.into_iter().filter(|name| !is_shard(name)).collect())
    }

    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError> {
        let mut all = self.home().queues.queue_properties(queue).await?;
        for shard in self.all_shards(queue).await?.iter().filter(|shard| shard.generation > 0) {
            let (storage, physical) = self.maps.locate(queue, shard)?;
            match storage.queues.queue_properties(&physical).await {
                Ok(properties) => all.approximate_count += properties.approximate_count,
                Err(e) if e.kind() == K::QueueNotFound => {}
                Err(e) => return Err(e),
            }
        }
        Ok(all)
    }

    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError> {
        self.home().queues.set_queue_metadata(queue, metadata).await
    }

    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError> {
        let outcome = self.put_somewhere(queue, &message).await?;
        self.notify(queue);
        Ok(outcome)
    }

    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError> {
        limits::check_get(queue, &options)?;
        self.gather(queue, options).await
    }

    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError> {
        limits::check_peek(queue, count)?;
        let mut all = Vec::new();
        for shard in self.readable_shards(queue).await? {
            let (storage, physical) = self.maps.locate(queue, &shard)?;
            match storage.queues.peek(&physical, count).await {
                Ok(peeked) => all.extend(peeked.into_iter().map(|mut message| {
                    message.id = outer_id(&shard, &message.id);
                    message
                })),
                Err(e) if e.kind() == K::QueueNotFound && shard.generation > 0 => {}
                Err(e) => return Err(e),
            }
        }
        all.sort_by_key(|message| message.inserted);
        all.truncate(count as usize);
        Ok(all)
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        let at_once = change.visibility.is_zero();
        let (shard, inner) = self.find("update message", queue, message).await?;
        let (storage, physical) = self.maps.locate(queue, &shard)?;
        let updated = match storage.queues.update(&physical, &inner, change).await {
            Ok(updated) => updated,
            Err(error) => return Err(self.unless_retired("update message", queue, &shard, error).await),
        };
        if at_once {
            self.notify(queue);
        }
        Ok(updated)
    }

    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError> {
        let (shard, inner) = self.find("delete message", queue, message).await?;
        let (storage, physical) = self.maps.locate(queue, &shard)?;
        match storage.queues.delete(&physical, &inner, expired).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.unless_retired("delete message", queue, &shard, error).await),
        }
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        for shard in self.all_shards(queue).await? {
            let (storage, physical) = self.maps.locate(queue, &shard)?;
            match storage.queues.clear(&physical).await {
                Err(e) if e.kind() != K::QueueNotFound || shard.generation == 0 => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        self.all_powers()
    }
}
