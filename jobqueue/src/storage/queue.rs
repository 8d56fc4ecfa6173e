//! The queue half of the port.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Access, ExpiredReceipt, GetMessages, MessageRef, PeekedMessage, PutMessage, PutOutcome, Received,
    StoreError, Subscription, UpdateMessage, Updated,
};
use crate::name::QueueName;
use crate::settings::metadata::Metadata;

/// Queues with the semantics of Azure Storage queues.
///
/// # Contract
/// - **At least once.** A message that [`put`](Self::put) acknowledged is returned by [`get`](Self::get) again and again, each
///   time invisible for the visibility timeout asked for, until it is deleted or its time to live is over.
/// - **Receipts.** Every get and every update gives the message a new pop receipt and makes all former ones worthless.
///   A put's receipt is good until the first get. Receipts cannot be guessed, and one message's receipt never works for
///   another.
/// - **Fencing.** Update and delete with a former receipt fail with [`PopReceiptMismatch`](super::StoreErrorKind::PopReceiptMismatch) or
///   [`MessageNotFound`](super::StoreErrorKind::MessageNotFound). A receipt from get or update is also refused once its visibility timeout is over
///   ([`LeaseExpired`](super::StoreErrorKind::LeaseExpired)), unless the caller passes [`ExpiredReceipt::Allow`]; a service that cannot check this
///   (Azure) leaves it to the caller's own deadline and says so in [`checks_expiry`](Self::checks_expiry).
/// - **Counting.** Each get of a message raises its dequeue count by one; peek and update do not.
/// - **Durability.** When put, update or delete return `Ok`, the effect survives what the storage promises to survive.
/// - **Errors.** An error says whether the operation may have been applied all the same ([`StoreError::is_ambiguous`]).
///   Adapters do not resend put, get, update or delete of messages on their own. The sections on errors below name what the
///   caller can act on; beside it, every operation may fail with [`QueueNotFound`](super::StoreErrorKind::QueueNotFound) (or `QueueBeingDeleted` for
///   a while after a deletion) if it needs the queue, with `InvalidInput` for an argument outside its range, and with
///   what any storage can meet: `Unauthorized`, `Throttled`, `Timeout`, `Unavailable`, `Full`, `Corrupt`, `Stopped`, `Protocol`.
/// - **Cancel safety.** Dropping a future leaves the operation applied or not applied, never half.
/// - **Order** of delivery is not promised.
/// - **Time.** Azure counts durations in whole seconds; storages with clocks of their own take milliseconds.
#[async_trait]
pub trait QueueStore: fmt::Debug + Send + Sync + 'static {
    /// Creates a queue.
    ///
    /// # Errors
    /// `QueueAlreadyExists` when there is one with other metadata; `QueueBeingDeleted` while a deleted one is
    /// being removed.
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError>;

    /// Deletes a queue with all its messages.
    ///
    /// # Errors
    /// As the contract says.
    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError>;

    /// The names of all queues that begin with `prefix`, in order.
    ///
    /// # Errors
    /// As the contract says; a prefix that no queue has is no error.
    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError>;

    /// Metadata and approximate length.
    ///
    /// # Errors
    /// As the contract says.
    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError>;

    /// The metadata alone. A storage that has to count messages to tell how many there are does not count them for it:
    /// settings are read when a queue is opened, and then twice a minute.
    ///
    /// # Errors
    /// As the contract says.
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        Ok(self.queue_properties(queue).await?.metadata)
    }

    /// Replaces all metadata. The last writer wins.
    ///
    /// # Errors
    /// `InvalidInput` for names that are not identifiers, `TooLarge` or `InvalidInput` for more than 8 KiB.
    async fn set_queue_metadata(&self, queue: &QueueName, metadata: &Metadata) -> Result<(), StoreError>;

    /// Adds a message.
    ///
    /// # Errors
    /// `TooLarge` for a text of more than [`MAX_TEXT_BYTES`](super::MAX_TEXT_BYTES), or
    /// [`MAX_ESCAPED_BYTES`](super::rules::MAX_ESCAPED_BYTES) once escaped for XML; `InvalidInput` for characters that XML 1.0 cannot
    /// carry, and for durations outside their ranges.
    async fn put(&self, queue: &QueueName, message: PutMessage) -> Result<PutOutcome, StoreError>;

    /// Adds messages; the answers stand in the order of the messages. Not atomic: each message has its own answer.
    ///
    /// # Errors
    /// Of each message as of [`put`](Self::put); one that is refused does not hold up the others.
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>>;

    /// Leases up to `count` visible messages.
    ///
    /// # Errors
    /// As the contract says. A queue without visible messages is no error.
    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError>;

    /// Looks at up to `count` (1–32) visible messages without leasing them.
    ///
    /// # Errors
    /// As the contract says. A queue without visible messages is no error.
    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError>;

    /// Changes visibility, and text if given, of a leased message; returns the new receipt. Time to live and
    /// dequeue count stay.
    ///
    /// # Errors
    /// `PopReceiptMismatch`, `MessageNotFound` or `LeaseExpired` when the message is not the caller's any more
    /// ([`StoreError::is_lease_lost`]); texts and durations as of [`put`](Self::put). Nothing is changed then.
    async fn update(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        change: UpdateMessage,
    ) -> Result<Updated, StoreError>;

    /// Deletes a leased message.
    ///
    /// # Errors
    /// `PopReceiptMismatch`, `MessageNotFound` or `LeaseExpired` when the message is not the caller's any more
    /// ([`StoreError::is_lease_lost`]).
    async fn delete(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        expired: ExpiredReceipt,
    ) -> Result<(), StoreError>;

    /// Deletes leased messages; the answers stand in the order of the messages. Not atomic.
    ///
    /// # Errors
    /// Of each message as of [`delete`](Self::delete); one that is refused does not hold up the others.
    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>>;

    /// Deletes all messages of a queue.
    ///
    /// # Errors
    /// As the contract says.
    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError>;

    /// Tries out whether the caller may do with `queue` what it is going to, and changes nothing. A queue that does not
    /// exist is no error. A storage without permissions of its own says yes.
    ///
    /// # Errors
    /// `Unauthorized`, naming the permissions that are missing; other kinds when the storage cannot be asked.
    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError>;

    /// Rings when a message may have become visible in `queue`, or may do so earlier than was known: this or another process has
    /// put it, with or without a delay, or an update has shortened its lease. `None` when the storage can only be polled. It may
    /// ring for nothing, and it never rings for delays that run out: [`Received::next_visible_in`] tells those.
    fn subscribe(&self, queue: &QueueName) -> Option<Subscription>;

    /// Whether update and delete refuse an expired receipt even if nobody has taken the message since.
    fn checks_expiry(&self) -> bool;

    /// Whether operations that are asked for at about the same time share one commit, so that
    /// [`delete_all`](Self::delete_all) costs less than as many calls of [`delete`](Self::delete), and several calls of
    /// [`put_all`](Self::put_all) under way at once less than one after the other. A worker then deletes the messages of jobs that
    /// end at about the same time together, and [`Queue::send_all`](crate::Queue::send_all) has more of them under way.
    fn commits_together(&self) -> bool {
        false
    }

    /// A handle of its own for use on another runtime, sharing no connections with this one. The lease
    /// keeper uses it, so that a handler that blocks the main runtime cannot hold up renewals.
    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore>;
}

/// Whether [`QueueStore::create_queue`] made the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Created {
    /// It did not exist before.
    New,
    /// It existed with the same metadata.
    Existed,
}

/// What is known about a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueProperties {
    /// The queue's metadata.
    pub metadata: Metadata,
    /// How many messages there are, invisible ones included; never below the real number.
    pub approximate_count: u64,
}

impl QueueProperties {
    /// Properties with the given values.
    pub fn new(metadata: Metadata, approximate_count: u64) -> Self {
        Self { metadata, approximate_count }
    }
}
