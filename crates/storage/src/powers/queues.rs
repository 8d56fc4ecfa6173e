//! The powers of queue stores.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::name::QueueName;
use crate::{
    Advice, DeadLetterMessage, ExpiredReceipt, MessageRef, Metadata, PutMessage, PutOutcome, StoreError,
    Subscription, SweepLeftovers, SweptLeftovers,
};

/// A future that resolves when the storage revokes a lease early.
pub type LeaseRevoked = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A future that resolves when no message is on its way to this process any more.
pub type DeliveriesStopped = Pin<Box<dyn Future<Output = ()> + Send>>;
/// A future that resolves when leased messages can be changed without the delay of a new connection.
pub type WarmUp = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A storage that reads metadata more cheaply than [`queue_properties`](crate::QueueStore::queue_properties),
/// and replaces it conditionally.
///
/// # Contract
/// A read returns the `metadata` that `queue_properties` would return. A replacement compares and writes in
/// one step. The framework reads settings when it opens a queue, and then twice a minute; operators replace
/// them. Without this power the framework calls `queue_properties`, and compares before and after the write,
/// so that two operators who write at the same moment may both succeed.
#[async_trait]
pub trait MetadataStore: fmt::Debug + Send + Sync + 'static {
    /// Returns the metadata of a queue.
    ///
    /// # Errors
    /// As `queue_properties`.
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError>;

    /// Replaces all metadata if it is `before`.
    ///
    /// # Errors
    /// `ConditionNotMet` if the metadata is not `before`; also as
    /// [`set_queue_metadata`](crate::QueueStore::set_queue_metadata).
    async fn replace_queue_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<(), StoreError>;
}

/// A storage that counts messages by state.
///
/// # Contract
/// The counts are exact at one moment, unless the storage says that it estimates, and exclude expired
/// messages. Without this power, `Queue::counts_by_state` returns `None` and operators see only the
/// approximate length.
#[async_trait]
pub trait StateCounter: fmt::Debug + Send + Sync + 'static {
    /// Returns the number of messages in each state, with the time of the count by the storage's clock
    /// exactly if `queue_properties` returns one.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`](crate::QueueStore).
    async fn counts_by_state(&self, queue: &QueueName) -> Result<StateCounts, StoreError>;
}

/// A storage that puts or deletes many messages in one call.
///
/// # Contract
/// There is an answer for each message, in their order. A batch is not atomic: some messages may succeed and
/// others fail, and a refused message does not affect the others. Without this power the framework calls
/// [`put`](crate::QueueStore::put) and [`delete`](crate::QueueStore::delete) for one message after the other.
///
/// A storage that puts a list by several requests begins none of them later than
/// [`PUT_LIST_PERIOD`](crate::PUT_LIST_PERIOD) after the call, and answers with an unambiguous `Timeout` for
/// the messages that are left: [`put_each`](crate::put_each) does that. The framework counts on it where it
/// keeps the order of keys itself, since the positions of a list are announced before its first put, and are
/// kept for a limited time. A storage that stores a list by one request or in one transaction has no such
/// limit.
#[async_trait]
pub trait Batches: fmt::Debug + Send + Sync + 'static {
    /// Adds messages. They are shared, because the caller keeps them for another attempt.
    ///
    /// # Errors
    /// For each message as [`put`](crate::QueueStore::put); an unambiguous `Timeout` for a message whose put
    /// was not begun in time.
    async fn put_all(
        &self,
        queue: &QueueName,
        messages: Arc<[PutMessage]>,
    ) -> Vec<Result<PutOutcome, StoreError>>;

    /// Deletes leased messages.
    ///
    /// # Errors
    /// For each message as [`delete`](crate::QueueStore::delete).
    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        expired: ExpiredReceipt,
    ) -> Vec<Result<(), StoreError>>;
}

/// A storage that itself keeps the order of [groups](PutMessage::group).
///
/// # Contract
/// In a queue for which [`orders_groups`](Self::orders_groups) returns true, the storage delivers one message
/// of a group at a time. It delivers the next message only after that message was deleted, has expired, or
/// was dead-lettered. A message that is given back stays the first of its group, whatever its delay and
/// however its receiver ends. A message that was put with a delay keeps its position too, unless the storage
/// assigns the position when the delay is over. A peek may show messages that wait for their group, after the
/// visible messages. Without this power the framework keeps the order by a log in the blobs.
#[async_trait]
pub trait OrderedGroups: fmt::Debug + Send + Sync + 'static {
    /// Returns whether the storage keeps the order of groups in this queue.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`](crate::QueueStore).
    async fn orders_groups(&self, queue: &QueueName) -> Result<bool, StoreError>;
}

/// A storage that itself keeps dead-letter queues.
///
/// # Contract
/// Each queue has a dead-letter queue, under the name [`QueueName::dead_letter`], which accepts messages only
/// through [`dead_letter`](Self::dead_letter). Messages that the storage moves there on its own initiative
/// carry their [cause](crate::DeadLetterCause). Without this power the framework copies a dead letter to an
/// ordinary queue of that name and deletes the message.
#[async_trait]
pub trait NativeDeadLetters: fmt::Debug + Send + Sync + 'static {
    /// Moves a leased message to the dead-letter queue of its queue in one step: whatever happens, the
    /// message is in one of the two queues. In the dead-letter queue it has the text of `letter`, and
    /// never expires.
    ///
    /// # Errors
    /// As [`delete`](crate::QueueStore::delete); `TooLarge` and `InvalidInput` for the text.
    async fn dead_letter(
        &self,
        queue: &QueueName,
        message: &MessageRef,
        letter: DeadLetterMessage,
    ) -> Result<(), StoreError>;
}

/// A storage that announces messages.
///
/// # Contract
/// A subscription wakes when a message may have become visible in the queue, or may become visible earlier
/// than was known: this or another process has put it, with or without a delay, an update has shortened its
/// lease, or the message before it in its group was deleted. It may wake without cause. A get requested after
/// the wake finds the message; a peek or a count may come before the message is committed. The end of a delay
/// wakes no subscription: [`Received::next_visible_in`](crate::Received::next_visible_in) gives that time.
/// A storage that does not [announce all](Self::announces_all) messages wakes when one becomes visible at once
/// by a put or a release over the same opened storage; workers poll it, too. Without this power workers only
/// poll.
pub trait Arrivals: fmt::Debug + Send + Sync + 'static {
    /// Returns a subscription to a queue, which may be created later.
    fn subscribe(&self, queue: &QueueName) -> Subscription;

    /// Returns whether messages of other processes are announced as well: true (the default), or false for a
    /// storage that announces nothing itself, so that only the messages of this opened storage are announced.
    fn announces_all(&self) -> bool {
        true
    }

    /// Returns a future that resolves once the storage sends this process no message of the queue without a
    /// further get, and all messages that it sent without a get are given back. `None` (the default) for a
    /// storage that sends messages only in answer to a get. A worker that stops waits for this future, for at
    /// most a second. The future changes nothing while the queue has a subscription.
    fn stop_deliveries(&self, _queue: &QueueName) -> Option<DeliveriesStopped> {
        None
    }
}

/// A storage whose leases depend on connections of this process, as Service Bus sessions depend on links.
///
/// # Contract
/// Both methods only save time: every lease also ends by its deadline, and every change opens the connection
/// that it needs. Without this power a lease ends only by its timeout.
pub trait LeaseLinks: fmt::Debug + Send + Sync + 'static {
    /// Returns a future that resolves if the storage revokes this lease early, for example when a Service Bus
    /// session link closes; `None` for a lease that ends only by its timeout.
    fn lease_revoked(&self, queue: &QueueName, message: &MessageRef) -> Option<LeaseRevoked>;

    /// Returns a future that warms up the connection used for renewals, so that the first renewal of a short
    /// lease is not delayed; `None` if there is nothing to open, or if an earlier call has done so.
    fn warm_up(&self, queue: &QueueName) -> Option<WarmUp>;
}

/// A storage with data and settings that only the adapter can maintain.
///
/// # Contract
/// A sweep removes only leftovers of crashes in places that no other part of the framework knows, and that no
/// message needs any more. Advice changes nothing. Without this power there is nothing to sweep and no
/// advice.
#[async_trait]
pub trait Upkeep: fmt::Debug + Send + Sync + 'static {
    /// Removes leftovers of crashes: by default nothing.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`](crate::QueueStore). Leftovers removed before the
    /// error stay removed.
    async fn sweep(&self, _leftovers: SweepLeftovers) -> Result<SweptLeftovers, StoreError> {
        Ok(SweptLeftovers::default())
    }

    /// Returns advice on the settings that a queue has in the storage itself: by default none.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`](crate::QueueStore).
    async fn advice(&self, _queue: &QueueName) -> Result<Vec<Advice>, StoreError> {
        Ok(Vec::new())
    }

    /// Returns advice on the settings of the storage as a whole: by default none.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`](crate::QueueStore).
    async fn storage_advice(&self) -> Result<Vec<Advice>, StoreError> {
        Ok(Vec::new())
    }
}

/// The number of messages of a queue in each state. Expired messages are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
#[allow(clippy::exhaustive_structs, reason = "the states are those of `MessageState`")]
pub struct StateCounts {
    /// The messages that a worker can receive now, or once the messages before them in their groups are gone.
    pub waiting: u64,
    /// The messages that were sent with a delay and never received.
    pub delayed: u64,
    /// The messages that were received and put back for a time: after a failure, by a snooze, or because no
    /// worker knows their kind yet.
    pub backing_off: u64,
    /// The messages that are leased: they run, or wait in a worker for their turn.
    pub running: u64,
    /// The time at which the oldest of the messages that [back off](Self::backing_off) was put; `None` if
    /// there is none.
    #[serde(skip)]
    pub oldest_backing_off: Option<SystemTime>,
    /// The time at which the oldest of the [waiting](Self::waiting) messages that wait for another message of
    /// their group and are not delayed was put; `None` if there is none, and in a storage that does not keep
    /// the order of groups.
    #[serde(skip)]
    pub oldest_held_up: Option<SystemTime>,
    /// The time of the count by the storage's clock, like [`QueueProperties::now`](crate::QueueProperties).
    #[serde(skip)]
    pub now: Option<SystemTime>,
}

impl StateCounts {
    /// Returns the number of all messages.
    pub fn total(&self) -> u64 {
        self.waiting + self.delayed + self.backing_off + self.running
    }

    /// Returns the sum of the counts of two parts of a queue.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let older = |one: Option<SystemTime>, other| one.into_iter().chain(other).min();
        Self {
            waiting: self.waiting + other.waiting,
            delayed: self.delayed + other.delayed,
            backing_off: self.backing_off + other.backing_off,
            running: self.running + other.running,
            oldest_backing_off: older(self.oldest_backing_off, other.oldest_backing_off),
            oldest_held_up: older(self.oldest_held_up, other.oldest_held_up),
            now: self.now.or(other.now),
        }
    }
}
