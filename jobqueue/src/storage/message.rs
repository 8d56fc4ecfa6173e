//! Messages as a storage has them: who they are, and what is got of them.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::short_text::ShortText;

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
