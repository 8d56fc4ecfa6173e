//! The arguments and answers of the operations on messages.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::{DeadLetterCause, MessageRef, PopReceipt};

/// A message to add.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutMessage {
    /// The text: at most 65,536 bytes in UTF-8, of characters that XML 1.0 can carry.
    pub text: String,
    /// The time for which the message is invisible at first: 0 to 7 days, and less than `ttl`.
    pub visibility_delay: Duration,
    /// The time after which the message expires, of any length; `None` is never. At least 1 second on Azure,
    /// positive elsewhere.
    pub ttl: Option<Duration>,
    /// The key that chooses the shard in a sharded storage; other storages ignore it.
    pub shard_key: Option<String>,
    /// The identity of the job, its source and its id, if this put may be repeated without harm. A storage
    /// that detects duplicates keeps only one message of each identity; other storages ignore it.
    pub job: Option<(Arc<str>, Arc<str>)>,
    /// The group in which the message keeps its order. A storage that [orders groups](super::OrderedGroups)
    /// delivers the messages of a group one at a time, in the order of their puts; other storages ignore it.
    pub group: Option<String>,
}

impl PutMessage {
    /// Returns a message that is visible at once and never expires.
    pub fn new(text: impl Into<String>) -> Self {
        let (text, visibility_delay) = (text.into(), Duration::ZERO);
        Self { text, visibility_delay, ttl: None, shard_key: None, job: None, group: None }
    }

    setters! {
        /// Sets the time for which the message is invisible at first.
        with_visibility_delay(visibility_delay: Duration);

        /// Sets the time to live; `None` is never.
        with_ttl(ttl from Option<Duration>);

        /// Sets the key that chooses the shard.
        with_shard_key(shard_key from Option<String>);

        /// Sets the group, for storages that order groups.
        with_group(group from Option<String>);
    }

    /// Sets the identity of the job, for storages that detect duplicates.
    #[must_use]
    pub fn with_job(mut self, source: impl Into<Arc<str>>, id: impl Into<Arc<str>>) -> Self {
        self.job = Some((source.into(), id.into()));
        self
    }
}

/// Shows no payload.
impl fmt::Debug for PutMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PutMessage")
            .field("text_bytes", &self.text.len())
            .field("visibility_delay", &self.visibility_delay)
            .field("ttl", &self.ttl)
            .finish()
    }
}

/// The answer to a put.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct PutOutcome {
    /// The new message, with a receipt that is valid until the first get.
    pub message: MessageRef,
    /// The time at which the message was inserted, by the storage's clock. Service Bus does not return it:
    /// there it may differ from that of the message by the time of the request, and by a second.
    pub inserted: SystemTime,
    /// The time at which the message expires; `None` is never.
    pub expires: Option<SystemTime>,
    /// The time at which the message becomes visible.
    pub next_visible: SystemTime,
}

impl PutOutcome {
    /// Returns the answer for a message that never expires.
    pub fn new(message: MessageRef, inserted: SystemTime, next_visible: SystemTime) -> Self {
        Self { message, inserted, expires: None, next_visible }
    }

    setters! {
        /// Sets the time at which the message expires; `None` is never.
        with_expires(expires from Option<SystemTime>);
    }
}

/// The arguments of a get.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct GetMessages {
    /// The maximum number of messages: 1–32.
    pub count: u32,
    /// The visibility timeout: up to 7 days, and at least 1 second on Azure, positive elsewhere.
    pub visibility: Duration,
}

impl GetMessages {
    /// Returns the arguments to lease up to `count` messages for `visibility`.
    pub fn new(count: u32, visibility: Duration) -> Self {
        Self { count, visibility }
    }
}

/// A change to a leased message.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpdateMessage {
    /// The time after which the message becomes visible: 0 to 7 days from now.
    pub visibility: Duration,
    /// The new text; `None` keeps the current text.
    pub text: Option<String>,
    /// Decides how the storage treats an expired receipt.
    pub expired: ExpiredReceipt,
    /// True if the caller gives the message back and does not use the new receipt. A storage with locks of a
    /// fixed length, under which a message cannot change, then replaces the message with a copy; other
    /// storages ignore the field.
    pub ends_lease: bool,
}

impl UpdateMessage {
    /// Returns a change of visibility that keeps the text and refuses an expired receipt.
    pub fn new(visibility: Duration) -> Self {
        Self { visibility, text: None, expired: ExpiredReceipt::Refuse, ends_lease: false }
    }

    setters! {
        /// Sets the text; `None` keeps the current text.
        with_text(text from Option<String>);

        /// Sets how to treat an expired receipt.
        with_expired(expired: ExpiredReceipt);
    }

    /// Gives the message back: the caller does not use the new receipt.
    #[must_use]
    pub fn ending_lease(mut self) -> Self {
        self.ends_lease = true;
        self
    }
}

/// Shows no payload.
impl fmt::Debug for UpdateMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UpdateMessage")
            .field("visibility", &self.visibility)
            .field("text_bytes", &self.text.as_ref().map(String::len))
            .field("late", &self.expired)
            .finish()
    }
}

/// The text and the cause with which a leased message goes to the dead-letter queue.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeadLetterMessage {
    /// The text, within the bounds of [`PutMessage::text`].
    pub text: String,
    /// The reason, for other programs that look at the dead-letter queue.
    pub cause: DeadLetterCause,
}

impl DeadLetterMessage {
    /// Returns a dead letter.
    pub fn new(text: impl Into<String>, cause: DeadLetterCause) -> Self {
        Self { text: text.into(), cause }
    }
}

debug_fields! {
    /// Shows no payload.
    DeadLetterMessage { text_bytes = text.len(), reason = cause.reason }
}

/// The arguments of [`Upkeep::sweep`](super::Upkeep::sweep).
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SweepLeftovers {
    /// Leftovers that were written later than this time stay.
    pub older_than: SystemTime,
    /// Counts the leftovers without removing them.
    pub dry_run: bool,
    /// The maximum number of leftovers to remove; `None` is no limit.
    pub limit: Option<u64>,
    /// Ends the sweep early when it fires: no further leftovers are removed.
    pub stop: CancellationToken,
}

impl SweepLeftovers {
    /// Returns the arguments to remove all leftovers written before a time.
    pub fn new(older_than: SystemTime) -> Self {
        Self { older_than, dry_run: false, limit: None, stop: CancellationToken::new() }
    }

    /// Returns whether a sweep is over that has removed this number of leftovers.
    pub fn is_over(&self, removed: u64) -> bool {
        self.stop.is_cancelled() || self.limit.is_some_and(|limit| removed >= limit)
    }

    setters! {
        /// Sets whether leftovers are only counted.
        with_dry_run(dry_run: bool);

        /// Sets the maximum number of leftovers to remove; `None` is no limit.
        with_limit(limit from Option<u64>);

        /// Sets the token that ends the sweep early.
        with_stop(stop: CancellationToken);
    }
}

/// The answer of [`Upkeep::sweep`](super::Upkeep::sweep).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SweptLeftovers {
    /// The number of leftovers examined.
    pub seen: u64,
    /// The number removed, or that would be removed if this were no dry run.
    pub removed: u64,
    /// The size in bytes of the removed leftovers.
    pub bytes: u64,
    /// The number that could not be removed.
    pub failed: u64,
}

/// The answer to an update.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Updated {
    /// The new receipt.
    pub receipt: PopReceipt,
    /// The time at which the message becomes visible, by the storage's clock.
    pub next_visible: SystemTime,
    /// The time for which the message is leased, counted from the request, if it differs from the requested
    /// time: a storage may grant less or more.
    pub granted: Option<Duration>,
}

impl Updated {
    /// Returns an answer with the given values.
    pub fn new(receipt: PopReceipt, next_visible: SystemTime) -> Self {
        Self { receipt, next_visible, granted: None }
    }

    setters! {
        /// Sets the time for which the message is leased, if it differs from the requested time.
        with_granted(granted from Option<Duration>);
    }
}

/// Decides how a storage treats a receipt after its visibility timeout, as long as no other client has
/// received the message.
///
/// The enum is exhaustive, as [`Condition`](super::Condition) is, because an adapter must treat every
/// variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ExpiredReceipt {
    /// Refuses the receipt: an expired lease is lost.
    #[default]
    Refuse,
    /// Accepts the receipt, as Azure does.
    Allow,
}
