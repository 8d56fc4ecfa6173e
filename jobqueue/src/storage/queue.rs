//! The queue half of the storage port.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use async_trait::async_trait;

use super::{
    Access, Advice, DeadLetterMessage, ExpiredReceipt, GetMessages, MessageRef, Operation, PeekedMessage,
    PutMessage, PutOutcome, Received, StoreError, StoreErrorKind, Subscription, SweepLeftovers,
    SweptLeftovers, UpdateMessage, Updated,
};
use crate::name::QueueName;
use crate::settings::metadata::Metadata;

/// A future that ends when a lease is over before its time.
pub type LeaseEnded = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A future that ends when changes of leased messages can be made without delay.
pub type Preparation = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Queues with the semantics of Azure Storage queues.
///
/// # Contract
/// - **At least once.** A message that [`put`](Self::put) acknowledged is returned by [`get`](Self::get) again and
///   again until it is deleted or its time to live is over. After each get it is invisible for the requested visibility
///   timeout.
/// - **Receipts.** Every get and every update gives the message a new pop receipt and invalidates all former ones. The
///   receipt of a put is valid until the first get. Receipts cannot be guessed, and the receipt of one message never
///   works for another.
/// - **Fencing.** Update and delete with a former receipt fail with [`PopReceiptMismatch`](super::StoreErrorKind::PopReceiptMismatch) or
///   [`MessageNotFound`](super::StoreErrorKind::MessageNotFound). A receipt from get or update is also refused once its visibility timeout is over
///   ([`LeaseExpired`](super::StoreErrorKind::LeaseExpired)), unless the caller passes [`ExpiredReceipt::Allow`]; a service that cannot check this
///   (Azure) leaves it to the caller's own deadline and says so in [`checks_expiry`](Self::checks_expiry).
/// - **Counting.** Each get of a message raises its dequeue count by one; peek and update do not.
/// - **Durability.** When put, update or delete return `Ok`, the effect survives the failures that the storage promises
///   to survive.
/// - **Errors.** An error says whether the operation may have been applied nevertheless ([`StoreError::is_ambiguous`]).
///   Adapters never resend put, get, update or delete of messages themselves. The `# Errors` sections below name the
///   kinds that the caller can act on. In addition, every operation may fail with
///   [`QueueNotFound`](super::StoreErrorKind::QueueNotFound) (or `QueueBeingDeleted` for a while after a deletion) if
///   it needs the queue, with `InvalidInput` for an argument outside its range, and with the kinds that any storage can
///   return: `Unauthorized`, `Throttled`, `Timeout`, `Unavailable`, `Full`, `Corrupt`, `Stopped`, `Protocol`.
/// - **Cancel safety.** Dropping a future leaves the operation applied or not applied, never half.
/// - **Order** of delivery is not promised, but within groups by a storage that [orders them](Self::orders_groups).
/// - **Time.** Azure counts durations in whole seconds; storages with their own clocks count milliseconds.
/// - **Provided methods.** An adapter must write twelve methods. The others have defaults that keep the contract; an
///   adapter overrides those that its storage can do better. A wrapper must forward all of them
///   (`#[deny(clippy::missing_trait_methods)]` reminds it).
///
/// The crate `jobqueue-conformance` checks the contract for any adapter.
#[async_trait]
pub trait QueueStore: fmt::Debug + Send + Sync + 'static {
    /// Creates a queue.
    ///
    /// # Errors
    /// `QueueAlreadyExists` when a queue of this name has other metadata; `QueueBeingDeleted` while a deleted one is
    /// being removed.
    async fn create_queue(&self, queue: &QueueName, metadata: &Metadata) -> Result<Created, StoreError>;

    /// Deletes a queue with all its messages.
    ///
    /// # Errors
    /// Only those of the contract.
    async fn delete_queue(&self, queue: &QueueName) -> Result<(), StoreError>;

    /// Returns the names of all queues that begin with `prefix`, in order.
    ///
    /// # Errors
    /// Only those of the contract. A prefix that no queue has is not an error.
    async fn list_queues(&self, prefix: &str) -> Result<Vec<QueueName>, StoreError>;

    /// Returns the metadata and the approximate length of a queue.
    ///
    /// # Errors
    /// Only those of the contract.
    async fn queue_properties(&self, queue: &QueueName) -> Result<QueueProperties, StoreError>;

    /// Returns the metadata alone. A storage that counts messages to know their number does not count them here: the
    /// framework reads settings when it opens a queue, and then twice a minute.
    ///
    /// # Errors
    /// Only those of the contract.
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        Ok(self.queue_properties(queue).await?.metadata)
    }

    /// Returns the number of messages in each state. `None`, the default, where the storage cannot tell.
    ///
    /// # Errors
    /// Only those of the contract.
    async fn counts_by_state(&self, queue: &QueueName) -> Result<Option<StateCounts>, StoreError> {
        let _ = queue;
        Ok(None)
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

    /// Adds messages; returns an answer for each, in their order. It is not atomic: some may be added and others
    /// refused. The default adds one after the other.
    ///
    /// # Errors
    /// For each message those of [`put`](Self::put). A refused message does not affect the others.
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<PutOutcome, StoreError>> {
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            answers.push(self.put(queue, message).await);
        }
        answers
    }

    /// Leases up to `count` visible messages.
    ///
    /// # Errors
    /// Only those of the contract. A queue without visible messages is not an error.
    async fn get(&self, queue: &QueueName, options: GetMessages) -> Result<Received, StoreError>;

    /// Returns up to `count` (1–32) visible messages without leasing them.
    ///
    /// # Errors
    /// Only those of the contract. A queue without visible messages is not an error.
    async fn peek(&self, queue: &QueueName, count: u32) -> Result<Vec<PeekedMessage>, StoreError>;

    /// Changes the visibility of a leased message, and its text if one is given; returns the new receipt. Time to live
    /// and dequeue count do not change.
    ///
    /// # Errors
    /// `PopReceiptMismatch`, `MessageNotFound` or `LeaseExpired` when the message is no longer the caller's
    /// ([`StoreError::is_lease_lost`]); `TooLarge` and `InvalidInput` for texts and durations as in [`put`](Self::put).
    /// The message is then not changed.
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

    /// Deletes leased messages; returns an answer for each, in their order. It is not atomic. The default deletes one
    /// after the other.
    ///
    /// # Errors
    /// For each message those of [`delete`](Self::delete). A refused message does not affect the others.
    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>> {
        let mut answers = Vec::with_capacity(messages.len());
        for message in messages {
            answers.push(self.delete(queue, &message, expired).await);
        }
        answers
    }

    /// Moves a leased message to the dead-letter queue of its queue, [`QueueName::dead_letter`], in one step: it is in one of
    /// the two, whatever happens. There its text is that of `letter`, and it never expires. Called only if
    /// [`has_dead_letter_queues`](Self::has_dead_letter_queues) is true. The default refuses.
    ///
    /// # Errors
    /// Those of [`delete`](Self::delete); `TooLarge` and `InvalidInput` for the text.
    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError> {
        let _ = (message, letter);
        let error = StoreError::new(StoreErrorKind::Unsupported, Operation::DeadLetter.as_str(), queue);
        Err(error.with_detail("the storage has no dead-letter queues of its own"))
    }

    /// Returns whether the storage has dead-letter queues of its own. Then each queue has one, under the name
    /// [`QueueName::dead_letter`], which takes messages by [`dead_letter`](Self::dead_letter) only; messages that the storage
    /// moves there by itself tell their [cause](super::DeadLetterCause). The default is `false`: the framework then copies
    /// a dead letter to an ordinary queue and deletes the message.
    fn has_dead_letter_queues(&self) -> bool {
        false
    }

    /// Returns whether the storage itself keeps the order of a [group](PutMessage::group) in this queue: it delivers one message of
    /// a group at a time, and the next one only after that message was deleted or dead-lettered. A message that is
    /// given back stays the first of its group, whatever its delay, and however its receiver ends. The default is `false`: the
    /// framework then keeps the order by a log in the blobs.
    ///
    /// # Errors
    /// Only those of the contract.
    async fn orders_groups(&self, queue: &QueueName) -> Result<bool, StoreError> {
        let _ = queue;
        Ok(false)
    }

    /// Returns what ends when the storage learns that a lease of this process is over before its time, as a session of Service Bus is with its
    /// link. `None`, the default, if a lease ends by its time only.
    fn lease_ended(&self, queue: &QueueName, message: &MessageRef) -> Option<LeaseEnded> {
        let _ = (queue, message);
        None
    }

    /// Returns what opens a connection for changes of leased messages, so that the first renewal of a short lease need not wait for it.
    /// `None`, the default, if nothing has to be opened, or if it was asked for before.
    fn preparation(&self, queue: &QueueName) -> Option<Preparation> {
        let _ = queue;
        None
    }

    /// Deletes all messages of a queue.
    ///
    /// # Errors
    /// Only those of the contract.
    async fn clear(&self, queue: &QueueName) -> Result<(), StoreError>;

    /// Removes what crashes have left behind in places that only this storage knows, and that no message needs any more. The
    /// default has no such places.
    ///
    /// # Errors
    /// Only those of the contract. What was removed before stays removed.
    async fn sweep(&self, leftovers: SweepLeftovers) -> Result<SweptLeftovers, StoreError> {
        let _ = leftovers;
        Ok(SweptLeftovers::default())
    }

    /// Returns what to change about the settings that a queue has in the storage itself, besides the framework's own. The default has
    /// no such settings.
    ///
    /// # Errors
    /// Only those of the contract.
    async fn advice(&self, queue: &QueueName) -> Result<Vec<Advice>, StoreError> {
        let _ = queue;
        Ok(Vec::new())
    }

    /// Checks whether the caller has the permissions for `access` to `queue`, and changes nothing. A queue that does
    /// not exist is not an error. The default returns `Ok`, as a storage without permissions does.
    ///
    /// # Errors
    /// `Unauthorized`, naming the missing permissions; other kinds when the storage cannot be asked.
    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        let _ = (queue, access);
        Ok(())
    }

    /// Returns a subscription that wakes when a message may have become visible in `queue`, or may become so earlier
    /// than was known: this or another process has put it, with or without a delay, or an update has shortened its
    /// lease. `None`, the default, when the storage can only be polled. It may wake without cause. It never wakes when a delay runs
    /// out: [`Received::next_visible_in`] tells that time.
    fn subscribe(&self, queue: &QueueName) -> Option<Subscription> {
        let _ = queue;
        None
    }

    /// Returns whether update and delete refuse an expired receipt even if nobody has taken the message since. The
    /// default is `false`: the lease then refuses by its own clock.
    fn checks_expiry(&self) -> bool {
        false
    }

    /// Returns whether operations that are requested at about the same time share one commit. Then
    /// [`delete_all`](Self::delete_all) costs less than as many calls of [`delete`](Self::delete), and concurrent calls
    /// of [`put_all`](Self::put_all) cost less than successive ones. A worker then deletes messages of jobs that end at
    /// about the same time together, and [`Queue::send_all`](crate::Queue::send_all) sends more of them concurrently.
    fn commits_together(&self) -> bool {
        false
    }

    /// Returns whether the messages of a queue lie in several places that throttle apart from each other. The default is
    /// `false`. If `true`, a throttled request for a single message slows down neither polling nor sending: it says
    /// nothing about the other places.
    fn throttles_by_shard(&self) -> bool {
        false
    }

    /// Returns the SQLite file that holds the queues, so that a send can be part of a transaction on it. `None`, the
    /// default, for every other storage.
    fn file(&self) -> Option<&Path> {
        None
    }

    /// Returns a handle for use on another runtime. It shares no connections with this one. The lease renewer uses it,
    /// so that a handler that blocks the main runtime cannot delay renewals.
    fn detached(self: Arc<Self>) -> Arc<dyn QueueStore>;
}

/// The result of [`QueueStore::create_queue`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// The number of messages, invisible ones included; never below the real number.
    pub approximate_count: u64,
}

impl QueueProperties {
    /// Returns properties with the given values.
    pub fn new(metadata: Metadata, approximate_count: u64) -> Self {
        Self { metadata, approximate_count }
    }
}

/// The number of messages of a queue in each state. Expired messages are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[non_exhaustive]
pub struct StateCounts {
    /// The messages that a worker can receive now.
    pub waiting: u64,
    /// The messages that were sent with a delay, and that nobody has received yet.
    pub delayed: u64,
    /// The messages that were received and put back for a time: after a failure, by a snooze, or because no worker knows
    /// their kind yet.
    pub backing_off: u64,
    /// The messages that are leased: they run, or wait in a worker for their turn.
    pub running: u64,
}

impl StateCounts {
    /// Returns the number of all messages.
    pub fn total(&self) -> u64 {
        self.waiting + self.delayed + self.backing_off + self.running
    }

    /// Returns the counts of two parts of a queue together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            waiting: self.waiting + other.waiting,
            delayed: self.delayed + other.delayed,
            backing_off: self.backing_off + other.backing_off,
            running: self.running + other.running,
        }
    }
}
