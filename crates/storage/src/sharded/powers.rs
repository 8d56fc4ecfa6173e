//! The powers of the queues over shards.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;
use futures_util::{FutureExt, StreamExt, stream};
use tokio::time::Instant;

use super::map::Shard;
use super::maps::Maps;
use super::store::{CONCURRENT_REQUESTS, ShardedQueues};
use crate::clock::WITHOUT_END;
use crate::name::QueueName;
use crate::notifier::QueueParts;
use crate::{
    Access, Advice, Arrivals, Batches, DeadLetterMessage, DeliveriesStopped, Detach, ExpiredReceipt,
    Guarantees, LeaseLinks, LeaseRevoked, MessageRef, Metadata, MetadataStore, NativeDeadLetters, Operation,
    Permissions, PutMessage, PutOutcome, QueuePowers, QueueStore, Queues, StateCounter, StateCounts,
    StoreError, StoreErrorKind, Subscription, SweepLeftovers, SweptLeftovers, Upkeep, WarmUp, put_each,
};

/// The minimum time after which a wait for messages ends, however short the refresh interval is.
const MIN_CHECK_INTERVAL: Duration = Duration::from_secs(5);

impl ShardedQueues {
    /// Returns the powers that the accounts offer together.
    pub(super) fn all_powers(self: Arc<Self>) -> QueuePowers {
        let accounts = || self.maps.options.accounts.iter().map(|(_, storage)| &*storage.queues);
        let all = |has: fn(&QueuePowers) -> bool| accounts().all(|queues| has(queues.powers()));
        let any = |has: fn(&QueuePowers) -> bool| accounts().any(|queues| has(queues.powers()));
        QueuePowers {
            guarantees: Guarantees {
                checks_expiry: all(|powers| powers.guarantees.checks_expiry),
                // A list of deletions would wait for the account that answers last.
                commits_together: accounts().len() == 1 && all(|powers| powers.guarantees.commits_together),
                puts_lists_whole: false,
                counts_deliveries: all(|powers| powers.guarantees.counts_deliveries),
            },
            peek_reach: accounts().filter_map(|queues| queues.powers().peek_reach).min(),
            metadata: Some(Arc::clone(&self) as _),
            counts: all(|powers| powers.counts.is_some()).then(|| Arc::clone(&self) as _),
            // A page would have to be merged from the pages of the shards.
            index: None,
            log: None,
            batches: Some(Arc::clone(&self) as _),
            // Two shards may hold messages of a key while the number of shards changes.
            groups: None,
            dead_letters: all(|powers| powers.dead_letters.is_some()).then(|| Arc::clone(&self) as _),
            arrivals: all(|powers| powers.arrivals.is_some()).then(|| Arc::clone(&self) as _),
            links: any(|powers| powers.links.is_some()).then(|| Arc::clone(&self) as _),
            upkeep: any(|powers| powers.upkeep.is_some()).then(|| Arc::clone(&self) as _),
            permissions: any(|powers| powers.permissions.is_some()).then(|| Arc::clone(&self) as _),
            detach: Some(self),
            // A transaction covers only one file or one database.
            transaction_place: None,
        }
    }
}

#[async_trait]
impl MetadataStore for ShardedQueues {
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        self.home().queues.queue_metadata(queue).await
    }

    async fn replace_queue_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<(), StoreError> {
        self.home().queues.replace_queue_metadata(queue, before, metadata).await
    }
}

#[async_trait]
impl StateCounter for ShardedQueues {
    async fn counts_by_state(&self, queue: &QueueName) -> Result<StateCounts, StoreError> {
        let ask = |queues: Arc<Queues>, shard| async move { queues.counts_by_state(&shard).await };
        let all = self.ask_all(queue, ask).await?;
        // All accounts have this power; otherwise the sharded storage does not have it.
        Ok(all.into_iter().filter_map(|(_, counts)| counts).fold(StateCounts::default(), StateCounts::plus))
    }
}

#[async_trait]
impl Batches for ShardedQueues {
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let put = |message| self.put(queue, message);
        put_each(queue, messages, CONCURRENT_REQUESTS, Instant::now(), put).await
    }

    /// Deletes the messages of each shard together.
    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        // Ordered, not hashed, so that the same calls make the same requests.
        let mut of_shards: BTreeMap<Shard, Vec<(usize, MessageRef)>> = BTreeMap::new();
        for (place, message) in messages.iter().enumerate() {
            if let Some((shard, message)) = self.known_shard(queue, message) {
                of_shards.entry(shard).or_default().push((place, message));
            }
        }
        let deletions = of_shards.into_iter().map(|(shard, messages)| async move {
            let (storage, physical) = self.maps.locate(queue, &shard).ok()?;
            let (places, messages): (Vec<_>, _) = messages.into_iter().unzip();
            let answers = storage.queues.delete_all(&physical, messages, expired).await;
            Some(places.into_iter().zip(answers).collect::<Vec<_>>())
        });
        let answered: Vec<_> = stream::iter(deletions).buffer_unordered(CONCURRENT_REQUESTS).collect().await;
        let mut answered: HashMap<_, _> = answered.into_iter().flatten().flatten().collect();
        let mut answers = Vec::with_capacity(messages.len());
        for (place, message) in messages.iter().enumerate() {
            answers.push(match answered.remove(&place) {
                Some(answer) if !is_missing(&answer) => answer,
                // The shards have changed since the map was read.
                _ => self.delete(queue, message, expired).await,
            });
        }
        answers
    }
}

fn is_missing(answer: &Result<(), StoreError>) -> bool {
    answer.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::QueueNotFound)
}

#[async_trait]
impl NativeDeadLetters for ShardedQueues {
    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        let change = |queues: Arc<Queues>, shard, message| async move {
            queues.dead_letter(&shard, &message, letter).await
        };
        self.in_shard(Operation::DeadLetter, queue, message, change).await
    }
}

impl Arrivals for ShardedQueues {
    /// Notifies of messages that this process puts, and of messages that other processes put into the shards
    /// of the map last read, if these announce them. If all do, a wait ends at the refresh interval, so that
    /// its caller reads the map again and finds new shards.
    fn subscribe(&self, queue: &QueueName) -> Subscription {
        let shards = ShardsOfQueue { maps: Arc::clone(&self.maps), queue: queue.clone() };
        self.own_subscription(queue).with_parts(Arc::new(shards))
    }

    fn announces_all(&self) -> bool {
        self.maps.announces_all()
    }

    fn stop_deliveries(&self, queue: &QueueName) -> Option<DeliveriesStopped> {
        self.in_known_shards(queue, Queues::stop_deliveries)
    }
}

/// The shards of a queue by the map last read, each with its own notifications.
#[derive(Debug)]
struct ShardsOfQueue {
    maps: Arc<Maps>,
    queue: QueueName,
}

impl QueueParts for ShardsOfQueue {
    fn check_interval(&self) -> Duration {
        // A worker polls the other storages anyway, as often as the application wants.
        let is_needed = self.maps.announces_all();
        if is_needed { self.maps.options.refresh.max(MIN_CHECK_INTERVAL) } else { WITHOUT_END }
    }

    fn version(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.maps.known_shards(&self.queue).hash(&mut hasher);
        hasher.finish()
    }

    fn subscribe(&self) -> Vec<Subscription> {
        let of_shard = |shard: Shard| {
            let (storage, physical) = self.maps.locate(&self.queue, &shard).ok()?;
            storage.queues.subscribe(&physical)
        };
        self.maps.known_shards(&self.queue).into_iter().filter_map(of_shard).collect()
    }
}

impl LeaseLinks for ShardedQueues {
    fn lease_revoked(&self, queue: &QueueName, message: &MessageRef) -> Option<LeaseRevoked> {
        let (shard, message) = self.known_shard(queue, message)?;
        let (storage, physical) = self.maps.locate(queue, &shard).ok()?;
        storage.queues.lease_revoked(&physical, &message)
    }

    /// Warms up all shards, since the next lease may come from any of them.
    fn warm_up(&self, queue: &QueueName) -> Option<WarmUp> {
        self.in_known_shards(queue, Queues::warm_up)
    }
}

impl ShardedQueues {
    /// Joins the futures of the known shards; `None` if no shard has a future.
    fn in_known_shards(
        &self,
        queue: &QueueName,
        of_shard: impl Fn(&Queues, &QueueName) -> Option<WarmUp>,
    ) -> Option<WarmUp> {
        let of_shard = |shard: Shard| {
            let (storage, physical) = self.maps.locate(queue, &shard).ok()?;
            of_shard(&storage.queues, &physical)
        };
        let all: Vec<_> = self.maps.known_shards(queue).into_iter().filter_map(of_shard).collect();
        (!all.is_empty()).then(|| Box::pin(join_all(all).map(drop)) as WarmUp)
    }
}

#[async_trait]
impl Upkeep for ShardedQueues {
    async fn sweep(&self, leftovers: SweepLeftovers) -> Result<SweptLeftovers, StoreError> {
        let mut all = SweptLeftovers::default();
        for (_, storage) in &self.maps.options.accounts {
            if leftovers.is_over(all.removed) {
                break;
            }
            let limit = leftovers.limit.map(|limit| limit.saturating_sub(all.removed));
            let swept = storage.queues.sweep(leftovers.clone().with_limit(limit)).await?;
            all.seen += swept.seen;
            all.removed += swept.removed;
            all.bytes += swept.bytes;
            all.failed += swept.failed;
        }
        Ok(all)
    }

    async fn advice(&self, queue: &QueueName) -> Result<Vec<Advice>, StoreError> {
        let ask = |queues: Arc<Queues>, shard| async move {
            let all = queues.advice(&shard).await?;
            let named = |advice: Advice| Advice { text: format!("{shard}: {}", advice.text), ..advice };
            Ok(all.into_iter().map(named).collect::<Vec<_>>())
        };
        Ok(self.ask_all(queue, ask).await?.into_iter().flat_map(|(_, advice)| advice).collect())
    }

    async fn storage_advice(&self) -> Result<Vec<Advice>, StoreError> {
        let mut all = Vec::new();
        for (account, storage) in &self.maps.options.accounts {
            let advice = storage.queues.storage_advice().await?;
            let named = |advice: Advice| Advice { text: format!("{account}: {}", advice.text), ..advice };
            all.extend(advice.into_iter().map(named));
        }
        Ok(all)
    }
}

#[async_trait]
impl Permissions<QueueName> for ShardedQueues {
    /// Asks every shard, since accounts may grant different permissions.
    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        self.ask_all(queue, |queues, shard| async move { queues.check_access(&shard, access).await }).await?;
        Ok(())
    }
}

impl Detach<dyn QueueStore> for ShardedQueues {
    fn detached(&self) -> Arc<dyn QueueStore> {
        Arc::new(Self::over(self.maps.detached()))
    }
}
