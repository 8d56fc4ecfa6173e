//! Messages as a storage returns them: ids, receipts and content.

use std::fmt;
use std::time::{Duration, SystemTime};

use crate::fast::short_text::ShortText;

/// The storage's own id of a message. It is not secret. The id of the job is in the envelope.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct MessageId(ShortText);

impl MessageId {
    /// Returns an id with the text that the storage wrote.
    pub fn new(id: impl AsRef<str>) -> Self {
        Self(ShortText::new(id.as_ref()))
    }

    /// Returns the id as text.
    #[inline]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

debug_fields! {
    MessageId(as_str())
}

impl fmt::Display for MessageId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The right to change or delete one delivery of one message. The receipt is secret: `Debug` does not show
/// it, and there is no `Display`.
#[derive(Clone, PartialEq, Eq)]
pub struct PopReceipt(ShortText);

impl PopReceipt {
    /// Returns a receipt with the text that the storage wrote.
    pub fn new(receipt: impl AsRef<str>) -> Self {
        Self(ShortText::new(receipt.as_ref()))
    }

    /// Returns the receipt itself, for the storage. Do not log it.
    #[inline]
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
    /// The id of the message.
    pub id: MessageId,
    /// The newest receipt.
    pub receipt: PopReceipt,
}

/// The answer to a get.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Received {
    /// The leased messages.
    pub messages: Vec<LeasedMessage>,
    /// The time before which no further message becomes visible, leased ones included. Set if the storage
    /// knows the time and returned fewer messages than were asked for. The next message may come later, since
    /// leases are renewed and messages deleted.
    pub next_visible_in: Option<Duration>,
    /// True if there may be visible messages although the answer is empty: the storage pushes messages, and
    /// had not confirmed in time that there are none. A worker that runs until it is idle asks again.
    pub is_uncertain: bool,
    /// True if a part of the queue was not asked, or did not answer: a sharded storage goes on without it. A
    /// pass that must see every message asks again.
    pub is_partial: bool,
}

impl Received {
    /// Returns an answer with these messages, and without the time until the next message.
    pub fn new(messages: Vec<LeasedMessage>) -> Self {
        Self { messages, next_visible_in: None, is_uncertain: false, is_partial: false }
    }

    setters! {
        /// Sets whether there may be visible messages although the answer is empty.
        with_uncertainty(is_uncertain: bool);

        /// Sets whether a part of the queue was not asked, or did not answer.
        with_missing_part(is_partial: bool);

        /// Sets the time until the next message becomes visible.
        with_next_visible_in(next_visible_in from Option<Duration>);
    }
}

/// A leased message.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeasedMessage {
    /// The message and its receipt.
    pub message: MessageRef,
    /// The text, or the reason why it could not be read from the storage's answer. An unreadable text never
    /// fails the other messages.
    pub text: Result<String, String>,
    /// The number of times the message has been dequeued, this time included.
    pub dequeue_count: u32,
    /// The time at which the message was inserted.
    pub inserted: SystemTime,
    /// The time at which the message expires; `None` is never.
    pub expires: Option<SystemTime>,
    /// The time at which the message becomes visible again, by the storage's clock.
    pub next_visible: SystemTime,
    /// The time for which the message is leased, counted from the request, if it differs from the requested
    /// time. A storage may grant less or more, and one of several shards may have been asked late.
    pub granted: Option<Duration>,
    /// The reason why the message is in a dead-letter queue that the storage itself keeps.
    pub dead: Option<DeadLetterCause>,
    /// The [group](super::PutMessage::group) of the message, if the storage returns it.
    pub group: Option<String>,
    /// The id that a message in such a dead-letter queue had in its original queue.
    pub original_id: Option<MessageId>,
}

impl LeasedMessage {
    /// Returns a message that never expires.
    pub fn new(
        message: MessageRef,
        text: Result<String, String>,
        dequeue_count: u32,
        inserted: SystemTime,
        next_visible: SystemTime,
    ) -> Self {
        Self {
            message,
            text,
            dequeue_count,
            inserted,
            expires: None,
            next_visible,
            granted: None,
            dead: None,
            group: None,
            original_id: None,
        }
    }

    setters! {
        /// Sets the time at which the message expires; `None` is never.
        with_expires(expires from Option<SystemTime>);

        /// Sets the time for which the message is leased, if it differs from the requested time.
        with_granted(granted from Option<Duration>);

        /// Sets the reason why the message is in a dead-letter queue that the storage itself keeps.
        with_dead(dead from Option<DeadLetterCause>);

        /// Sets the group, if the storage returns it.
        with_group(group from Option<String>);

        /// Sets the id that a dead letter had in its original queue.
        with_original_id(original_id from Option<MessageId>);
    }
}

debug_fields! {
    /// Shows no payload.
    LeasedMessage {
        id = message.id,
        text_bytes = text.as_ref().map(String::len),
        dequeue_count,
        next_visible
    }
}

/// A message that was read without being leased.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeekedMessage {
    /// The id of the message.
    pub id: MessageId,
    /// The text, or the reason why it could not be read.
    pub text: Result<String, String>,
    /// The number of times the message has been dequeued.
    pub dequeue_count: u32,
    /// The time at which the message was inserted.
    pub inserted: SystemTime,
    /// The time at which the message expires; `None` is never.
    pub expires: Option<SystemTime>,
    /// The reason why the message is in a dead-letter queue that the storage itself keeps.
    pub dead: Option<DeadLetterCause>,
    /// The id that a message in such a dead-letter queue had in its original queue.
    pub original_id: Option<MessageId>,
}

impl PeekedMessage {
    /// Returns a message that never expires.
    pub fn new(
        id: MessageId,
        text: Result<String, String>,
        dequeue_count: u32,
        inserted: SystemTime,
    ) -> Self {
        Self { id, text, dequeue_count, inserted, expires: None, dead: None, original_id: None }
    }

    setters! {
        /// Sets the reason why the message is in a dead-letter queue that the storage itself keeps.
        with_dead(dead from Option<DeadLetterCause>);

        /// Sets the id that a dead letter had in its original queue.
        with_original_id(original_id from Option<MessageId>);

        /// Sets the time at which the message expires; `None` is never.
        with_expires(expires from Option<SystemTime>);
    }
}

debug_fields! {
    /// Shows no payload.
    PeekedMessage { id, text_bytes = text.as_ref().map(String::len), dequeue_count }
}

/// The reason why a message is in a dead-letter queue that the storage itself keeps. The storage also sets a
/// cause when it moves a message there on its own initiative.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterCause {
    /// The reason, as a short code such as `attempts_exhausted` or `MaxDeliveryCountExceeded`.
    pub reason: String,
    /// The error text, if there was an error.
    pub description: Option<String>,
}

impl DeadLetterCause {
    /// Returns a cause without a description.
    pub fn new(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), description: None }
    }

    setters! {
        /// Sets the error text.
        with_description(description from Option<String>);
    }
}
