//! Chooses the shard that accepts a message.

use tokio::time::{Instant, timeout_at};

use super::map::Shard;
use super::maps::LONGEST_PUT;
use super::place::{by_key, outer_id};
use super::shard_health::RequestKind;
use super::store::ShardedQueues;
use crate::name::QueueName;
use crate::{MessageRef, PutMessage, PutOutcome, StoreError, StoreErrorKind as K};

impl ShardedQueues {
    /// Puts a message into a shard that accepts it. Creates the shards again if one is missing.
    ///
    /// A shard may take its whole time limit to refuse a message, and a queue has up to 256 shards. So the
    /// put tries no further shard in the second half of [`LONGEST_PUT`], and no shard that the current map
    /// does not name.
    pub(super) async fn put_somewhere(
        &self,
        queue: &QueueName,
        message: &PutMessage,
    ) -> Result<PutOutcome, StoreError> {
        let began = Instant::now();
        match self.put_once(queue, message, began).await {
            // The shard was retired, deleted or lost since the map was read: the message was certainly not
            // stored.
            Err(e) if e.kind() == K::QueueNotFound => {
                let map = self.maps.fresh(queue).await?;
                self.home().queues.queue_metadata(queue).await?;
                self.maps.create_all(queue, map.targets(self.maps.home_name())).await?;
                self.put_once(queue, message, began).await
            }
            outcome => outcome,
        }
    }

    /// Returns the shards to try for a put, best first: all open shards, then the paused shard that opens
    /// first.
    fn candidates(&self, queue: &QueueName, targets: Vec<Shard>, key: Option<&str>) -> Vec<Shard> {
        if let Some(key) = key {
            let place = by_key(key, targets.len());
            return targets.into_iter().skip(place).take(1).collect();
        }
        let closed_for = |shard: &Shard| self.maps.health.closed_for(queue, shard, RequestKind::Put);
        // The turns of paused shards are divided among all open shards; a single neighbour could not carry
        // them.
        let (mut open, closed): (Vec<_>, Vec<_>) =
            targets.into_iter().partition(|shard| closed_for(shard).is_none());
        let first = self.turns.put(queue) % open.len().max(1);
        open.rotate_left(first);
        open.extend(closed.into_iter().min_by_key(closed_for));
        open
    }

    async fn put_once(
        &self,
        queue: &QueueName,
        message: &PutMessage,
        began: Instant,
    ) -> Result<PutOutcome, StoreError> {
        let targets = self.maps.map(queue).await?.targets(self.maps.home_name());
        let key = message.shard_key.as_deref();
        let kind = if key.is_some() { RequestKind::PutWithKey } else { RequestKind::Put };
        // The shards that the key excludes may be able to serve. Paused shards that are not tried have failed
        // lately.
        let excluded = key.map_or(0, |_| targets.len() - 1);
        let candidates = self.candidates(queue, targets, key);
        let (all, mut tried, mut last) = (candidates.len() + excluded, 0, None);
        for shard in candidates {
            if tried > 0 {
                let targets = self.maps.map(queue).await?.targets(self.maps.home_name());
                if began.elapsed() >= LONGEST_PUT / 2 {
                    break;
                }
                if !targets.contains(&shard) {
                    continue;
                }
            }
            let (storage, physical) = self.maps.locate(queue, &shard)?;
            tried += 1;
            let asked = self.maps.health.begin(queue, &shard, kind);
            // After that time the shard may be retired, because the map that names it is too old.
            let put = timeout_at(began + LONGEST_PUT, storage.queues.put(&physical, message.clone())).await;
            let late = |_| Err(StoreError::new(K::Timeout, "put message", queue).with_ambiguous(true));
            // The time may have gone into the map, or into the shards before.
            let is_cut_short = put.is_err() && asked.at.elapsed() < LONGEST_PUT / 2;
            match put.unwrap_or_else(late) {
                Ok(outcome) => {
                    self.maps.health.answered(queue, &shard, asked);
                    let id = outer_id(&shard, &outcome.message.id);
                    let message = MessageRef { id, ..outcome.message };
                    return Ok(PutOutcome { message, ..outcome });
                }
                Err(e) => {
                    let is_ambiguous = e.is_ambiguous();
                    let may_be_accepted_elsewhere = e.is_retryable() || e.kind() == K::Stopped;
                    if !is_ambiguous && !may_be_accepted_elsewhere {
                        // The shard refused this message; it may accept others.
                        self.maps.health.answered(queue, &shard, asked);
                    } else if !is_cut_short {
                        // Other messages need not wait for this shard.
                        self.maps.health.failed(queue, &shard, asked, &e);
                    }
                    // If the message may be stored, the caller must learn that.
                    if is_ambiguous || !may_be_accepted_elsewhere {
                        return Err(e.with_of_part(tried < all));
                    }
                    last = Some(e);
                }
            }
        }
        let none = || StoreError::new(K::Unavailable, "put message", queue);
        Err(last.map_or_else(none, |error| error.with_of_part(tried < all)))
    }
}
