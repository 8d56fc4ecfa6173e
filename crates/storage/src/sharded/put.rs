//! Chooses the shard that takes a message.

use std::sync::atomic::Ordering;

use super::map::Shard;
use super::place::{by_key, outer_id};
use super::store::ShardedQueues;
use crate::name::QueueName;
use crate::{MessageRef, PutMessage, PutOutcome, StoreError, StoreErrorKind as K};

impl ShardedQueues {
    /// Puts a message into a shard that takes it. Creates the shards again if one is missing.
    pub(super) async fn put_somewhere(
        &self,
        queue: &QueueName,
        message: &PutMessage,
    ) -> Result<PutOutcome, StoreError> {
        match self.put_once(queue, message).await {
            // The shard was retired or deleted since the map was read, or lost: the message was certainly not stored.
            Err(e) if e.kind() == K::QueueNotFound => {
                let map = self.maps.fresh(queue).await?;
                self.home().queues.queue_metadata(queue).await?;
                for shard in map.targets(self.maps.home_name()).iter().filter(|shard| shard.generation > 0) {
                    self.maps.create(queue, shard).await?;
                }
                self.put_once(queue, message).await
            }
            outcome => outcome,
        }
    }

    /// Returns the shards to try for a put, best first.
    fn candidates(&self, queue: &QueueName, targets: Vec<Shard>, key: Option<&str>) -> Vec<Shard> {
        if let Some(key) = key {
            let place = by_key(key, targets.len());
            return targets.into_iter().skip(place).take(1).collect();
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let is_open = |shard: &Shard| self.maps.health.closed_for(queue, shard).is_none();
        // The turns of paused shards are divided among all that are open: a single neighbour could not carry them.
        let (mut open, mut closed): (Vec<_>, Vec<_>) = targets.into_iter().partition(is_open);
        for shards in [&mut open, &mut closed] {
            let first = turn % shards.len().max(1);
            shards.rotate_left(first);
        }
        open.append(&mut closed);
        open
    }

    async fn put_once(&self, queue: &QueueName, message: &PutMessage) -> Result<PutOutcome, StoreError> {
        let targets = self.maps.map(queue).await?.targets(self.maps.home_name());
        let (all, mut tried, mut last) = (targets.len(), 0, None);
        for shard in self.candidates(queue, targets, message.shard_key.as_deref()) {
            let (storage, physical) = self.maps.locate(queue, &shard)?;
            tried += 1;
            match storage.queues.put(&physical, message.clone()).await {
                Ok(outcome) => {
                    let id = outer_id(&shard, &outcome.message.id);
                    let message = MessageRef { id, ..outcome.message };
                    return Ok(PutOutcome { message, ..outcome });
                }
                // The message was certainly not stored: the next shard may take it.
                Err(e) if (e.is_retryable() || e.kind() == K::Stopped) && !e.is_ambiguous() => {
                    self.maps.health.failed(queue, &shard, &e);
                    last = Some(e);
                }
                Err(e) => {
                    // It may be stored, which the caller must learn; other messages need not wait for this shard.
                    if e.is_throttled() {
                        self.maps.health.failed(queue, &shard, &e);
                    }
                    return Err(e.with_of_part(tried < all));
                }
            }
        }
        let none = || StoreError::new(K::Unavailable, "put message", queue);
        Err(last.map_or_else(none, |error| error.with_of_part(tried < all)))
    }
}
