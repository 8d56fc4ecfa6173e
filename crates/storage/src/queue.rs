//! The queue half of the storage port.

use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;

use super::{
    Arrivals, Batches, Detach, ExpiredReceipt, GetMessages, Guarantees, LeaseLinks, MessageIndex, MessageLog,
    MessageRef, Metadata, MetadataStore, NativeDeadLetters, OrderedGroups, PeekedMessage, Permissions,
    PutMessage, PutOutcome, Received, StateCounter, StoreError, TransactionPlace, UpdateMessage, Updated,
    Upkeep,
};
use crate::name::QueueName;

/// Queues with the semantics of Azure Storage queues.
///
/// # Contract
/// - **At least once.** [`get`](Self::get) returns a message that [`put`](Self::put) acknowledged again and
///   again, until it is deleted or its time to live is over. After each get the message is invisible for the
///   requested visibility timeout.
/// - **Receipts.** Every get and every update gives the message a new pop receipt and invalidates all former
///   ones. The receipt of a put is valid until the first get. Receipts cannot be guessed, and the receipt of
///   one message never works for another.
/// - **Fencing.** Update and delete with a former receipt fail with
///   [`PopReceiptMismatch`](super::StoreErrorKind::PopReceiptMismatch) or
///   [`MessageNotFound`](super::StoreErrorKind::MessageNotFound). A receipt from get or update is also
///   refused once its visibility timeout is over ([`LeaseExpired`](super::StoreErrorKind::LeaseExpired)),
///   unless the caller passes [`ExpiredReceipt::Allow`]. A service that cannot check this (Azure) leaves it
///   to the caller's deadline and does not claim [`checks_expiry`](super::Guarantees::checks_expiry).
/// - **Counting.** Each get of a message raises its dequeue count by one; peek and update do not.
/// - **Durability.** When put, update or delete return `Ok`, the effect survives the failures that the
///   storage promises to survive.
/// - **Errors.** An error says whether the operation may have been applied nevertheless
///   ([`StoreError::is_ambiguous`]). Adapters never resend put, get, update or delete of messages themselves.
///   The `# Errors` sections below name the kinds that the caller can act on. In addition, every operation
///   may fail with [`QueueNotFound`](super::StoreErrorKind::QueueNotFound) (or `QueueBeingDeleted` for a
///   while after a deletion) if it needs the queue, with `InvalidInput` for an argument outside its range,
///   and with the kinds that any storage can return: `Unauthorized`, `Throttled`, `Timeout`, `Unavailable`,
///   `Full`, `Corrupt`, `Stopped`, `Protocol`.
/// - **Cancel safety.** Dropping a future leaves the operation applied or not applied, never half.
/// - **Order.** The order of delivery is not promised, except within groups by a storage with the power
///   [`OrderedGroups`].
/// - **Time.** Azure counts durations in whole seconds; storages with their own clocks count milliseconds.
/// - **Powers.** Every further ability of a storage is a separate trait, which [`powers`](Self::powers)
///   returns: see [`QueuePowers`].
///
/// The crate `jobqueue-conformance` checks the contract for any adapter.
#[async_trait]
pub trait QueueStore: fmt::Debug + Send + Sync + 'static {
    /// Creates a queue.
    ///
    /// # Errors
    /// `QueueAlreadyExists` when a queue of this name has other metadata; `QueueBeingDeleted` while a deleted
    /// queue of this name is being removed.
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError>;

    /// Deletes a queue with all its messages.
    ///
    /// # Errors
    /// Only the errors of the contract.
    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError>;

    /// Returns the names of all queues that begin with `prefix`, in order.
    ///
    /// # Errors
    /// Only the errors of the contract. A prefix that no queue has is not an error.
    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError>;

    /// Returns the metadata and the approximate length of a queue.
    ///
    /// # Errors
    /// Only the errors of the contract.
    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError>;

    /// Replaces all metadata. The last writer wins.
    ///
    /// # Errors
    /// `InvalidInput` for names that are not identifiers, `TooLarge` or `InvalidInput` for more than 8 KiB.
    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError>;

    /// Adds a message.
    ///
    /// # Errors
    /// `TooLarge` for a text of more than [`MAX_TEXT_BYTES`](super::MAX_TEXT_BYTES), or
    /// [`MAX_ESCAPED_BYTES`](super::rules::MAX_ESCAPED_BYTES) once escaped for XML; `InvalidInput` for
    /// characters that XML 1.0 cannot carry, and for durations outside their ranges.
    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError>;

    /// Leases up to `count` visible messages.
    ///
    /// # Errors
    /// Only the errors of the contract. A queue without visible messages is not an error.
    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError>;

    /// Returns up to `count` (1–32) visible messages without leasing them.
    ///
    /// # Errors
    /// Only the errors of the contract. A queue without visible messages is not an error.
    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError>;

    /// Changes the visibility of a leased message, and its text if the change has one; returns the new
    /// receipt. Time to live and dequeue count do not change.
    ///
    /// # Errors
    /// `PopReceiptMismatch`, `MessageNotFound` or `LeaseExpired` when the message is no longer the caller's
    /// ([`StoreError::is_lease_lost`]); `TooLarge` and `InvalidInput` for texts and durations as in
    /// [`put`](Self::put). The message is then not changed.
    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError>;

    /// Deletes a leased message.
    ///
    /// # Errors
    /// `PopReceiptMismatch`, `MessageNotFound` or `LeaseExpired` when the message is no longer the caller's
    /// ([`StoreError::is_lease_lost`]).
    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError>;

    /// Deletes all messages of a queue.
    ///
    /// # Errors
    /// Only the errors of the contract.
    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError>;

    /// Returns the powers of this storage; none by default. Called once when [`Stores`](super::Stores) are
    /// made, not for each operation.
    fn powers(self: Arc<Self>) -> QueuePowers {
        QueuePowers::default()
    }
}

/// The powers of a queue store. `default()` has none.
///
/// An adapter names its powers and takes the rest from `..QueuePowers::default()`. A wrapper destructures all
/// fields, so that it does not compile until it forwards or drops a new power;
/// [`Intercepted`](super::Intercepted) does this for any wrapper.
#[derive(Debug, Clone, Default)]
pub struct QueuePowers {
    /// The promises that the store keeps beyond the contract of [`QueueStore`].
    pub guarantees: Guarantees,
    /// The maximum number of messages, visible or not, that a peek examines; `None` if a peek examines the
    /// whole queue. A store that cannot select visible messages must not read all of a long queue for each
    /// peek.
    pub peek_reach: Option<u64>,
    /// Reads the metadata of a queue without counting its messages, and replaces it conditionally.
    pub metadata: Option<Arc<dyn MetadataStore>>,
    /// Counts messages by state.
    pub counts: Option<Arc<dyn StateCounter>>,
    /// Shows every message, whatever its state.
    pub index: Option<Arc<dyn MessageIndex>>,
    /// Shows every message, but not its lease.
    pub log: Option<Arc<dyn MessageLog>>,
    /// Puts and deletes many messages in one call.
    pub batches: Option<Arc<dyn Batches>>,
    /// Delivers the messages of a group in order.
    pub groups: Option<Arc<dyn OrderedGroups>>,
    /// Moves messages to dead-letter queues that the storage itself keeps.
    pub dead_letters: Option<Arc<dyn NativeDeadLetters>>,
    /// Announces messages that have become visible.
    pub arrivals: Option<Arc<dyn Arrivals>>,
    /// Watches and prepares the connections on which leases depend.
    pub links: Option<Arc<dyn LeaseLinks>>,
    /// Removes leftovers, and advises on the settings of queues.
    pub upkeep: Option<Arc<dyn Upkeep>>,
    /// Checks permissions for queues.
    pub permissions: Option<Arc<dyn Permissions<QueueName>>>,
    /// Opens separate connections for another runtime.
    pub detach: Option<Arc<dyn Detach<dyn QueueStore>>>,
    /// The database that holds the queues. A send can be part of a transaction on this database.
    pub transaction_place: Option<TransactionPlace>,
}

/// The result of [`QueueStore::create_queue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Created {
    /// The queue was created.
    New,
    /// The queue existed with the same metadata.
    Existed,
}

/// The properties of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueProperties {
    /// The queue's metadata.
    pub metadata: Metadata,
    /// The number of messages, invisible ones included. It is never zero while there are messages. Unless the
    /// storage says that it estimates, it is never below the real number at the time of the count, which may
    /// be some time ago.
    pub approximate_count: u64,
    /// The storage's time of the answer; `None` if it does not return it. Ages of messages are measured
    /// against it.
    pub now: Option<SystemTime>,
    /// True if messages are in former shards of the queue, or in the home queue of a queue with shards. They
    /// may be delivered after any number of messages that were put later.
    pub in_former_shards: bool,
}

impl QueueProperties {
    /// Returns properties with the given values, without the storage's time and without former shards.
    pub fn new(metadata: Metadata, approximate_count: u64) -> Self {
        Self { metadata, approximate_count, now: None, in_former_shards: false }
    }

    setters! {
        /// Sets the storage's time.
        with_now(now from Option<SystemTime>);

        /// Sets whether messages are in former shards.
        with_messages_in_former_shards(in_former_shards: bool);
    }
}
