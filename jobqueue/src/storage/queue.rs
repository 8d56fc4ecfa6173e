//! The queue half of the port.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;

use super::short_text::ShortText;
use super::{Access, Arrivals, StoreError};
use crate::vocabulary::metadata::Metadata;
use crate::vocabulary::name::QueueName;

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
///   ([`LeaseExpired`](super::StoreErrorKind::LeaseExpired)), unless the caller passes [`Late::IfUnclaimed`]; a service that cannot check this
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
    async fn delete(&self, queue: &QueueName, message: &MessageRef, late: Late) -> Result<(), StoreError>;

    /// Deletes leased messages; the answers stand in the order of the messages. Not atomic.
    ///
    /// # Errors
    /// Of each message as of [`delete`](Self::delete); one that is refused does not hold up the others.
    async fn delete_all(
        &self,
        queue: &QueueName,
        messages: Vec<MessageRef>,
        late: Late,
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

    /// Rings when a message may have become visible at once in `queue`, put by this or another process;
    /// `None` when the storage can only be polled. It may ring for nothing, and it never rings for delays that
    /// run out: [`Received::next_visible_in`] tells those.
    fn arrivals(&self, queue: &QueueName) -> Option<Arrivals>;

    /// Whether update and delete refuse an expired receipt even if nobody has taken the message since.
    fn checks_expiry(&self) -> bool;

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

/// The storage's own identity of a message. Not secret; the job's id is in the envelope.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(ShortText);

impl MessageId {
    /// An identity as the storage wrote it.
    pub fn new(id: impl AsRef<str>) -> Self {
        Self(ShortText::new(id.as_ref()))
    }

    /// The identity as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Debug for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("MessageId").field(&self.as_str()).finish()
    }
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The right to change or delete one delivery of one message. Secret: `Debug` does not show it, and it has no
/// `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct PopReceipt(ShortText);

impl PopReceipt {
    /// A receipt as the storage wrote it.
    pub fn new(receipt: impl AsRef<str>) -> Self {
        Self(ShortText::new(receipt.as_ref()))
    }

    /// The receipt itself, for the storage. Never log it.
    pub fn expose(&self) -> &str {
        self.0.as_str()
    }
}

impl fmt::Debug for PopReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PopReceipt(…)")
    }
}

/// One delivery of one message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MessageRef {
    /// The message.
    pub id: MessageId,
    /// The newest receipt.
    pub receipt: PopReceipt,
}

/// A message to add.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutMessage {
    /// The text, at most 65,536 bytes in UTF-8, of characters that XML 1.0 can carry.
    pub text: String,
    /// How long it stays invisible at first: 0 to 7 days, and less than `ttl`.
    pub visibility_delay: Duration,
    /// When it vanishes, counted from now; `None` is never. At least 1 second on Azure, positive elsewhere.
    pub ttl: Option<Duration>,
    /// What chooses the shard in a storage made of several; others ignore it.
    pub shard_key: Option<String>,
}

impl PutMessage {
    /// A message that is visible at once and never expires.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), visibility_delay: Duration::ZERO, ttl: None, shard_key: None }
    }

    /// Sets how long it stays invisible at first.
    #[must_use]
    pub fn with_visibility_delay(mut self, delay: Duration) -> Self {
        self.visibility_delay = delay;
        self
    }

    /// Sets the time to live; `None` is never.
    #[must_use]
    pub fn with_ttl(mut self, ttl: impl Into<Option<Duration>>) -> Self {
        self.ttl = ttl.into();
        self
    }

    /// Sets what chooses the shard.
    #[must_use]
    pub fn with_shard_key(mut self, key: impl Into<Option<String>>) -> Self {
        self.shard_key = key.into();
        self
    }
}

/// Payloads are not shown.
impl fmt::Debug for PutMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutMessage")
            .field("text_bytes", &self.text.len())
            .field("visibility_delay", &self.visibility_delay)
            .field("ttl", &self.ttl)
            .finish()
    }
}

/// What a put returns.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutOutcome {
    /// The new message, with a receipt that is good until the first get.
    pub message: MessageRef,
    /// When it was inserted, by the storage's clock.
    pub inserted: SystemTime,
    /// When it vanishes; `None` is never.
    pub expires: Option<SystemTime>,
    /// When it becomes visible.
    pub next_visible: SystemTime,
}

impl PutOutcome {
    /// A message that never expires.
    pub fn new(message: MessageRef, inserted: SystemTime, next_visible: SystemTime) -> Self {
        Self { message, inserted, expires: None, next_visible }
    }

    /// Sets when it vanishes; `None` is never.
    #[must_use]
    pub fn with_expires(mut self, moment: impl Into<Option<SystemTime>>) -> Self {
        self.expires = moment.into();
        self
    }
}

/// How to get messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GetMessages {
    /// How many at most: 1–32.
    pub count: u32,
    /// How long they become invisible: up to 7 days, and at least 1 second on Azure, positive elsewhere.
    pub visibility: Duration,
}

impl GetMessages {
    /// Up to `count` messages, invisible to others for `visibility`.
    pub fn new(count: u32, visibility: Duration) -> Self {
        Self { count, visibility }
    }
}

/// What a get returns.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Received {
    /// The leased messages.
    pub messages: Vec<LeasedMessage>,
    /// When no (or not enough) messages were visible and the storage knows: in how long the next one will be, of those
    /// just leased too.
    pub next_visible_in: Option<Duration>,
}

impl Received {
    /// The leased messages, with nothing known about the next.
    pub fn new(messages: Vec<LeasedMessage>) -> Self {
        Self { messages, next_visible_in: None }
    }

    /// Adds what is known about the next message.
    #[must_use]
    pub fn with_next_visible_in(mut self, wait: impl Into<Option<Duration>>) -> Self {
        self.next_visible_in = wait.into();
        self
    }
}

/// A leased message.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeasedMessage {
    /// The message and its receipt.
    pub message: MessageRef,
    /// The text, or why it could not be read from the storage's answer. An unreadable text never fails a whole
    /// batch.
    pub text: Result<String, String>,
    /// How often it has been dequeued, this time included.
    pub dequeue_count: u32,
    /// When it was inserted.
    pub inserted: SystemTime,
    /// When it vanishes; `None` is never.
    pub expires: Option<SystemTime>,
    /// When it becomes visible again, by the storage's clock.
    pub next_visible: SystemTime,
}

impl LeasedMessage {
    /// A message that never expires.
    pub fn new(
        message: MessageRef,
        text: Result<String, String>,
        dequeue_count: u32,
        inserted: SystemTime,
        next_visible: SystemTime,
    ) -> Self {
        Self { message, text, dequeue_count, inserted, expires: None, next_visible }
    }

    /// Sets when it vanishes; `None` is never.
    #[must_use]
    pub fn with_expires(mut self, moment: impl Into<Option<SystemTime>>) -> Self {
        self.expires = moment.into();
        self
    }
}

/// Payloads are not shown.
impl fmt::Debug for LeasedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeasedMessage")
            .field("id", &self.message.id)
            .field("text_bytes", &self.text.as_ref().map(String::len))
            .field("dequeue_count", &self.dequeue_count)
            .field("next_visible", &self.next_visible)
            .finish_non_exhaustive()
    }
}

/// A message that was only looked at.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeekedMessage {
    /// The message.
    pub id: MessageId,
    /// The text, or why it could not be read.
    pub text: Result<String, String>,
    /// How often it has been dequeued.
    pub dequeue_count: u32,
    /// When it was inserted.
    pub inserted: SystemTime,
    /// When it vanishes; `None` is never.
    pub expires: Option<SystemTime>,
}

impl PeekedMessage {
    /// A message that never expires.
    pub fn new(
        id: MessageId,
        text: Result<String, String>,
        dequeue_count: u32,
        inserted: SystemTime,
    ) -> Self {
        Self { id, text, dequeue_count, inserted, expires: None }
    }

    /// Sets when it vanishes; `None` is never.
    #[must_use]
    pub fn with_expires(mut self, moment: impl Into<Option<SystemTime>>) -> Self {
        self.expires = moment.into();
        self
    }
}

/// Payloads are not shown.
impl fmt::Debug for PeekedMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PeekedMessage")
            .field("id", &self.id)
            .field("text_bytes", &self.text.as_ref().map(String::len))
            .field("dequeue_count", &self.dequeue_count)
            .finish_non_exhaustive()
    }
}

/// A change to a leased message.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpdateMessage {
    /// In how long it becomes visible: 0 to 7 days from now.
    pub visibility: Duration,
    /// The new text; `None` keeps the present one.
    pub text: Option<String>,
    /// What to do if the receipt has expired.
    pub late: Late,
}

impl UpdateMessage {
    /// Visible in so long, with the text it has; refused if the receipt has expired.
    pub fn new(visibility: Duration) -> Self {
        Self { visibility, text: None, late: Late::Refuse }
    }

    /// Sets the text; `None` keeps the present one.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<Option<String>>) -> Self {
        self.text = text.into();
        self
    }

    /// Sets what to do if the receipt has expired.
    #[must_use]
    pub fn with_late(mut self, late: Late) -> Self {
        self.late = late;
        self
    }
}

/// Payloads are not shown.
impl fmt::Debug for UpdateMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateMessage")
            .field("visibility", &self.visibility)
            .field("text_bytes", &self.text.as_ref().map(String::len))
            .field("late", &self.late)
            .finish()
    }
}

/// What an update returns.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    /// The new receipt.
    pub receipt: PopReceipt,
    /// When the message becomes visible, by the storage's clock.
    pub next_visible: SystemTime,
}

impl Updated {
    /// An answer with the given values.
    pub fn new(receipt: PopReceipt, next_visible: SystemTime) -> Self {
        Self { receipt, next_visible }
    }
}

/// Whether a receipt is still good after its visibility timeout, as long as nobody else has got the message.
///
/// Exhaustive, as [`Condition`](super::Condition) and [`LeaseDuration`](super::LeaseDuration): an adapter must not pass over one it does not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Late {
    /// It is not: an expired lease is lost.
    #[default]
    Refuse,
    /// It is, as on Azure itself.
    IfUnclaimed,
}
