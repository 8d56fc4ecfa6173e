//! The queues of a storage with their powers.

use std::ops::Deref;
use std::sync::Arc;

use tokio::time::Instant;

use super::{
    Access, Advice, DeadLetterMessage, DeliveriesStopped, ExpiredReceipt, Guarantees, LeaseRevoked,
    MessageRef, Metadata, Operation, PutMessage, PutOutcome, QueuePowers, QueueStore, StateCounts,
    StoreError, StoreErrorKind, Subscription, SweepLeftovers, SweptLeftovers, WarmUp, put_each,
};
use crate::name::QueueName;

/// The queues of a storage: the methods of [`QueueStore`], and a method for each power, which falls back to a
/// default if the store lacks the power.
#[derive(Debug)]
pub struct Queues {
    store: Arc<dyn QueueStore>,
    powers: QueuePowers,
}

impl Queues {
    /// Returns the queues of a store, and asks the store for its powers, once.
    pub fn new(store: Arc<dyn QueueStore>) -> Self {
        let powers = Arc::clone(&store).powers();
        Self { store, powers }
    }

    /// Returns the underlying store, to wrap it or to build another storage on it.
    pub fn store(&self) -> &Arc<dyn QueueStore> {
        &self.store
    }

    /// Returns the powers of the store.
    pub fn powers(&self) -> &QueuePowers {
        &self.powers
    }

    /// Returns the promises that the store keeps beyond the contract.
    pub fn guarantees(&self) -> Guarantees {
        self.powers.guarantees
    }

    /// Returns the metadata of a queue. A store without [`MetadataStore`](super::MetadataStore) reads all
    /// [properties](QueueStore::queue_properties) of the queue for that.
    ///
    /// # Errors
    /// As [`queue_properties`](QueueStore::queue_properties).
    pub async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        match &self.powers.metadata {
            Some(metadata) => metadata.queue_metadata(queue).await,
            None => Ok(self.store.queue_properties(queue).await?.metadata),
        }
    }

    /// Replaces all metadata of a queue if it is `before`.
    ///
    /// Without [`MetadataStore`](super::MetadataStore) the metadata is compared before the write, and read
    /// again after it. If two programs write within one round trip to the storage, the first may lose its
    /// change unnoticed.
    ///
    /// # Errors
    /// `ConditionNotMet` if the metadata is not `before`, or if another program replaced it during the write;
    /// the error is then [ambiguous](StoreError::is_ambiguous). Also as
    /// [`set_queue_metadata`](QueueStore::set_queue_metadata).
    ///
    /// # Cancel safety
    /// If the future is dropped, the metadata is replaced or not.
    pub async fn replace_queue_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<(), StoreError> {
        if let Some(power) = &self.powers.metadata {
            return power.replace_queue_metadata(queue, before, metadata).await;
        }
        // Storages that send values as headers drop the blanks around them.
        let trimmed = |metadata: &Metadata| -> Metadata {
            metadata.iter().map(|(name, value)| (name, value.trim())).collect()
        };
        let is_other =
            async |expected: &Metadata| Ok(trimmed(&self.queue_metadata(queue).await?) != trimmed(expected));
        let changed =
            || StoreError::new(StoreErrorKind::ConditionNotMet, Operation::SetQueueMetadata.as_str(), queue);
        if is_other(before).await? {
            return Err(changed());
        }
        self.store.set_queue_metadata(queue, metadata).await?;
        match is_other(metadata).await {
            Ok(true) => Err(changed().with_ambiguous(true)),
            Ok(false) => Ok(()),
            Err(error) => Err(StoreError::with_ambiguous(error, true)),
        }
    }

    /// Returns the number of messages in each state; `None` if the store does not count them.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`].
    pub async fn counts_by_state(&self, queue: &QueueName) -> Result<Option<StateCounts>, StoreError> {
        match &self.powers.counts {
            Some(counts) => counts.counts_by_state(queue).await.map(Some),
            None => Ok(None),
        }
    }

    /// Adds messages and returns an answer for each, in their order. Without [batches](super::Batches) the
    /// messages are added one by one.
    ///
    /// # Errors
    /// For each message as [`put`](QueueStore::put). A refused message does not affect the others. Also an
    /// unambiguous `Timeout` for each message that was not sent, because those before it took longer than
    /// [`PUT_LIST_PERIOD`](super::PUT_LIST_PERIOD).
    ///
    /// # Cancel safety
    /// If the future is dropped, some messages may have been added.
    pub async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        if let Some(batches) = &self.powers.batches {
            return batches.put_all(queue, messages).await;
        }
        put_each(queue, messages, 1, Instant::now(), |message| self.store.put(queue, message)).await
    }

    /// Deletes leased messages and returns an answer for each, in their order. Without
    /// [batches](super::Batches) the messages are deleted one by one.
    ///
    /// # Errors
    /// For each message as [`delete`](QueueStore::delete). A refused message does not affect the others.
    ///
    /// # Cancel safety
    /// If the future is dropped, some messages may have been deleted.
    pub async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        if let Some(batches) = &self.powers.batches {
            return batches.delete_all(queue, messages, expired).await;
        }
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            answers.push(self.store.delete(queue, &message, expired).await);
        }
        answers
    }

    /// Returns whether the store keeps the messages of a group in order in this queue.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`].
    pub async fn orders_groups(&self, queue: &QueueName) -> Result<bool, StoreError> {
        match &self.powers.groups {
            Some(groups) => groups.orders_groups(queue).await,
            None => Ok(false),
        }
    }

    /// Moves a leased message to the dead-letter queue that the storage itself keeps for the queue.
    ///
    /// # Errors
    /// As [`NativeDeadLetters::dead_letter`](super::NativeDeadLetters::dead_letter); `Unsupported` if the
    /// store has no such queues.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message is moved or not moved, never half.
    pub async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        match &self.powers.dead_letters {
            Some(dead_letters) => dead_letters.dead_letter(queue, message, letter).await,
            None => {
                let operation = Operation::DeadLetter.as_str();
                let error = StoreError::new(StoreErrorKind::Unsupported, operation, queue);
                Err(error.with_detail("the storage has no dead-letter queues of its own"))
            }
        }
    }

    /// Returns a subscription to a queue; `None` if the store can only be polled.
    pub fn subscribe(&self, queue: &QueueName) -> Option<Subscription> {
        self.powers.arrivals.as_ref().map(|arrivals| arrivals.subscribe(queue))
    }

    /// Returns whether a subscription also wakes for messages of other processes.
    pub fn announces_all(&self) -> bool {
        self.powers.arrivals.as_ref().is_some_and(|arrivals| arrivals.announces_all())
    }

    /// Returns a future that resolves once no message arrives without a further get; `None` for a store that
    /// sends messages only in answer to a get.
    pub fn stop_deliveries(&self, queue: &QueueName) -> Option<DeliveriesStopped> {
        self.powers.arrivals.as_ref()?.stop_deliveries(queue)
    }

    /// Returns a future that resolves if the storage revokes a lease early; `None` if a lease ends only by
    /// its timeout.
    pub fn lease_revoked(&self, queue: &QueueName, message: &MessageRef) -> Option<LeaseRevoked> {
        self.powers.links.as_ref()?.lease_revoked(queue, message)
    }

    /// Returns a future that warms up the connection used for renewals; `None` if there is nothing to open.
    pub fn warm_up(&self, queue: &QueueName) -> Option<WarmUp> {
        self.powers.links.as_ref()?.warm_up(queue)
    }

    /// Removes leftovers of crashes from places that only the store knows.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`].
    ///
    /// # Cancel safety
    /// If the future is dropped, some leftovers may have been removed.
    pub async fn sweep(&self, leftovers: SweepLeftovers) -> Result<SweptLeftovers, StoreError> {
        match &self.powers.upkeep {
            Some(upkeep) => upkeep.sweep(leftovers).await,
            None => Ok(SweptLeftovers::default()),
        }
    }

    /// Returns advice on the settings of a queue in the storage itself.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`].
    pub async fn advice(&self, queue: &QueueName) -> Result<Vec<Advice>, StoreError> {
        match &self.powers.upkeep {
            Some(upkeep) => upkeep.advice(queue).await,
            None => Ok(Vec::new()),
        }
    }

    /// Returns advice on the settings of the storage as a whole.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`].
    pub async fn storage_advice(&self) -> Result<Vec<Advice>, StoreError> {
        match &self.powers.upkeep {
            Some(upkeep) => upkeep.storage_advice().await,
            None => Ok(Vec::new()),
        }
    }

    /// Checks whether the caller has the permissions for `access` to a queue. A store without permissions
    /// grants everything.
    ///
    /// # Errors
    /// `Unauthorized`, naming the missing permissions; other kinds if the storage cannot be asked.
    pub async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        match &self.powers.permissions {
            Some(permissions) => permissions.check_access(queue, access).await,
            None => Ok(()),
        }
    }
}

impl Deref for Queues {
    type Target = dyn QueueStore;

    fn deref(&self) -> &Self::Target {
        &*self.store
    }
}
