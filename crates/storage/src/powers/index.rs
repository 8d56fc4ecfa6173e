//! The power to show every message of a queue.

use std::fmt;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::name::QueueName;
use crate::{MessageId, PeekedMessage, StoreError};

/// A storage that shows every message of a queue, whatever its state.
///
/// # Contract
/// Reading changes no message. A page is exact at one moment and has no expired message. The messages of a
/// state come in the order of the times at which they become visible. Messages that wait for their group come
/// last, each after the messages for which it waits. A storage that cannot keep this contract may have the
/// weaker [`MessageLog`](super::MessageLog). Without either, operators see only the first 32 visible
/// messages.
#[async_trait]
pub trait MessageIndex: fmt::Debug + Send + Sync + 'static {
    /// Returns up to `count` (1 to 1,000) messages of one state, from the first message or from the
    /// [end](MessagePage::next) of an earlier page.
    ///
    /// # Errors
    /// `InvalidInput` if no page of this storage ended at `from`; otherwise only the errors of the contract
    /// of [`QueueStore`](crate::QueueStore).
    async fn messages(
        &self,
        queue: &QueueName,
        state: MessageState,
        from: Option<&str>,
        count: u32,
    ) -> Result<MessagePage, StoreError>;

    /// Makes a delayed or backing-off message visible now. Returns false if the message was neither. The call
    /// invalidates the receipt of the last update, but not the receipt of the put.
    ///
    /// # Errors
    /// Only the errors of the contract of [`QueueStore`](crate::QueueStore).
    async fn make_visible(&self, queue: &QueueName, message: &MessageId) -> Result<bool, StoreError>;
}

/// The state of a message: the same four as in [`StateCounts`](crate::StateCounts).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MessageState {
    /// A worker can receive the message now, or once the messages before it in its group are gone.
    Waiting,
    /// The message was put with a delay and never received.
    Delayed,
    /// The message was received and put back for a time.
    BackingOff,
    /// The message is leased.
    Running,
}

impl MessageState {
    /// All states.
    pub const ALL: [Self; 4] = [Self::Waiting, Self::Delayed, Self::BackingOff, Self::Running];
}

/// Messages of one state.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MessagePage {
    /// The messages, each with the time at which it becomes visible.
    pub messages: Vec<(PeekedMessage, SystemTime)>,
    /// The number of messages at the end of the page that wait for another message of their group. No worker
    /// can receive them yet.
    pub waiting_for_group: usize,
    /// The end of the page, if there may be further messages. Only the storage understands its text, which
    /// consists of ASCII letters, digits, `.`, `_` and `-`, so that it can be a part of a command.
    pub next: Option<String>,
}

impl MessagePage {
    /// Returns a page with these messages.
    pub fn new(messages: Vec<(PeekedMessage, SystemTime)>) -> Self {
        Self { messages, ..Self::default() }
    }

    setters! {
        /// Sets the number of messages at the end of the page that wait for another message of their group.
        with_waiting_for_group(waiting_for_group: usize);
        /// Sets the end of the page.
        with_next(next from Option<String>);
    }
}
