//! What a storage is asked for with messages, and what it answers when it has done it.

use std::fmt;
use std::time::{Duration, SystemTime};

use super::{MessageRef, PopReceipt};

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

/// A change to a leased message.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpdateMessage {
    /// In how long it becomes visible: 0 to 7 days from now.
    pub visibility: Duration,
    /// The new text; `None` keeps the present one.
    pub text: Option<String>,
    /// What to do if the receipt has expired.
    pub expired: ExpiredReceipt,
}

impl UpdateMessage {
    /// Visible in so long, with the text it has; refused if the receipt has expired.
    pub fn new(visibility: Duration) -> Self {
        Self { visibility, text: None, expired: ExpiredReceipt::Refuse }
    }

    /// Sets the text; `None` keeps the present one.
    #[must_use]
    pub fn with_text(mut self, text: impl Into<Option<String>>) -> Self {
        self.text = text.into();
        self
    }

    /// Sets what to do if the receipt has expired.
    #[must_use]
    pub fn with_late(mut self, expired: ExpiredReceipt) -> Self {
        self.expired = expired;
        self
    }
}

/// Payloads are not shown.
impl fmt::Debug for UpdateMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateMessage")
            .field("visibility", &self.visibility)
            .field("text_bytes", &self.text.as_ref().map(String::len))
            .field("late", &self.expired)
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
pub enum ExpiredReceipt {
    /// It is not: an expired lease is lost.
    #[default]
    Refuse,
    /// It is, as on Azure itself.
    Allow,
}
