//! The queue half of the port over shards.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::future::join_all;

use super::map::{Shard, is_shard};
use super::maps::Maps;
use super::place::{inner, outer_id};
use super::turns::Turns;
use crate::name::QueueName;
use crate::rules::limits;
use crate::{
    Created, ExpiredReceipt, GetMessages, MessageRef, Metadata, Notifiers, Operation, PeekedMessage,
    PutMessage, PutOutcome, QueuePowers, QueueProperties, QueueStore, Queues, Received, StoreError,
    StoreErrorKind as K, Stores, Subscription, UpdateMessage, Updated,
};

/// The maximum number of concurrent requests of a get.
pub(super) const CONCURRENT_GETS: usize = 8;
/// The maximum number of concurrent requests that ask every shard.
pub(super) const CONCURRENT_REQUESTS: usize = 32;

#[derive(Debug)]
pub(super) struct ShardedQueues {
    pub(super) maps: Arc<Maps>,
    pub(super) turns: Turns,
    notifiers: Notifiers,
}

impl ShardedQueues {
    pub(super) fn over(maps: Maps) -> Self {
        Self { maps: Arc::new(maps), turns: Turns::default(), notifiers: Notifiers::new() }
    }

    pub(super) fn home(&self) -> &Stores {
        self.maps.home()
    }

    /// Returns a subscription to the messages that this process puts.
    pub(super) fn own_subscription(&self, queue: &QueueName) -> Subscription {
        self.notifiers.subscribe(queue)
    }

    fn notify(&self, queue: &QueueName) {
        self.notifiers.notify(queue);
    }

    /// Returns all known shards, even while the map cannot be read.
    pub(super) async fn readable_shards(&self, queue: &QueueName) -> Result<Vec<Shard>, StoreError> {
        Ok(self.maps.newest_known(queue).await?.shards(self.maps.home_name()))
    }

    /// Asks all shards of the current map, many at once; an older map would miss the messages of newer
    /// shards. Returns their answers in order, the home queue's first. A shard that is missing while the home
    /// queue exists holds no messages, and has no answer.
    pub(super) async fn ask_all<T: Send, F: Future<Output = Result<T, StoreError>> + Send>(
        &self,
        queue: &QueueName,
        ask: impl Fn(Arc<Queues>, QueueName) -> F + Send + Sync,
    ) -> Result<Vec<(Shard, T)>, StoreError> {
        let shards = self.maps.fresh(queue).await?.shards(self.maps.home_name());
        self.ask_each(queue, shards, ask).await
    }

    /// Asks these shards, as [`ask_all`](Self::ask_all) does.
    async fn ask_each<T: Send, F: Future<Output = Result<T, StoreError>> + Send>(
        &self,
        queue: &QueueName,
        shards: Vec<Shard>,
        ask: impl Fn(Arc<Queues>, QueueName) -> F + Send + Sync,
    ) -> Result<Vec<(Shard, T)>, StoreError> {
        let mut answers = Vec::with_capacity(shards.len());
        let mut shards = shards.into_iter().peekable();
        while shards.peek().is_some() {
            let mut wave = Vec::new();
            for shard in shards.by_ref().take(CONCURRENT_REQUESTS) {
                let (storage, physical) = self.maps.locate(queue, &shard)?;
                let asked = ask(Arc::clone(&storage.queues), physical);
                wave.push(async move { (shard, asked.await) });
            }
            for (shard, answer) in join_all(wave).await {
                match answer {
                    Ok(answer) => answers.push((shard, answer)),
                    Err(e) if e.kind() == K::QueueNotFound && shard.generation > 0 => {}
                    Err(e) => return Err(e),
                }
            }
        }
        Ok(answers)
    }

    /// Returns the shard of a message by the last map read, and the message with the id within the shard. A
    /// message never moves, so the age of the map does not matter.
    pub(super) fn known_shard(&self, queue: &QueueName, message: &MessageRef) -> Option<(Shard, MessageRef)> {
        let (generation, number, message) = inner(message);
        let it = |shard: &Shard| (shard.generation, shard.number) == (generation, number);
        Some((self.maps.known_shards(queue).into_iter().find(it)?, message))
    }

    /// Changes a message in its shard. If the shard was retired since the map was read, its messages are gone
    /// too.
    pub(super) async fn in_shard<T, F: Future<Output = Result<T, StoreError>>>(
        &self,
        operation: Operation,
        queue: &QueueName,
        message: &MessageRef,
        change: impl FnOnce(Arc<Queues>, QueueName, MessageRef) -> F,
    ) -> Result<T, StoreError> {
        let mut found = self.known_shard(queue, message);
        if found.is_none() {
            self.maps.fresh(queue).await?;
            found = self.known_shard(queue, message);
        }
        let Some((shard, message)) = found else { return Err(self.gone(operation, queue).await) };
        let (storage, physical) = self.maps.locate(queue, &shard)?;
        match change(Arc::clone(&storage.queues), physical, message).await {
            Err(error) if error.kind() == K::QueueNotFound && shard.generation > 0 => {
                match self.maps.fresh(queue).await {
                    Ok(map) if !map.shards(self.maps.home_name()).contains(&shard) => {
                        Err(self.gone(operation, queue).await)
                    }
                    _ => Err(error),
                }
            }
            answer => answer,
        }
    }

    /// Returns the error for a message that no shard has: `MessageNotFound` if its queue exists.
    async fn gone(&self, operation: Operation, queue: &QueueName) -> StoreError {
        let there = self.home().queues.queue_metadata(queue).await;
        there.err().unwrap_or_else(|| StoreError::new(K::MessageNotFound, operation.as_str(), queue))
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
        // The dead letters of shards are deleted with the shards.
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
        let ask = |queues: Arc<Queues>, shard| async move { queues.queue_properties(&shard).await };
        let all = self.ask_all(queue, ask).await?;
        let targets = self.maps.newest_known(queue).await?.targets(self.maps.home_name());
        let count = all.iter().map(|(_, properties)| properties.approximate_count).sum();
        let in_former =
            all.iter().any(|(shard, found)| found.approximate_count > 0 && !targets.contains(shard));
        // The first answer is the home queue's, which holds the metadata.
        let home = all.into_iter().next().map(|(_, home)| (home.metadata, home.now));
        let (metadata, now) = home.unwrap_or_default();
        let properties = QueueProperties::new(metadata, count).with_now(now);
        Ok(properties.with_messages_in_former_shards(in_former))
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
        let ask = |queues: Arc<Queues>, shard| async move { queues.peek(&shard, count).await };
        let shards = self.readable_shards(queue).await?;
        let mut all = Vec::new();
        // Each wave is cut to the requested count, because a queue may have hundreds of shards.
        for wave in shards.chunks(CONCURRENT_REQUESTS) {
            for (shard, peeked) in self.ask_each(queue, wave.to_vec(), ask).await? {
                all.extend(peeked.into_iter().map(|message| PeekedMessage {
                    id: outer_id(&shard, &message.id),
                    original_id: message.original_id.as_ref().map(|id| outer_id(&shard, id)),
                    ..message
                }));
            }
            all.sort_by_key(|message| message.inserted);
            all.truncate(count as usize);
        }
        Ok(all)
    }

    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError> {
        let at_once = change.visibility.is_zero();
        let change = |queues: Arc<Queues>, shard, message| async move {
            queues.update(&shard, &message, change).await
        };
        let updated = self.in_shard(Operation::Update, queue, message, change).await?;
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
        let change = |queues: Arc<Queues>, shard, message| async move {
            queues.delete(&shard, &message, expired).await
        };
        self.in_shard(Operation::Delete, queue, message, change).await
    }

    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError> {
        self.ask_all(queue, |queues, shard| async move { queues.clear(&shard).await }).await?;
        Ok(())
    }

    fn powers(self: Arc<Self>) -> QueuePowers {
        self.all_powers()
    }
}
