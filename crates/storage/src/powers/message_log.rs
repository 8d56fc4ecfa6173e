//! The power to show the messages of a queue in the order in which the storage numbered them.

use std::fmt;
use std::time::SystemTime;

use async_trait::async_trait;

use crate::name::QueueName;
use crate::{PeekedMessage, StoreError};

/// A storage that shows every message of a queue, but neither its lease nor the messages of a state in the
/// order in which they become visible. A storage that does has [`MessageIndex`](super::MessageIndex) instead.
///
/// # Contract
/// Reading changes no message. A page has no expired message, and none that no worker will receive. Messages
/// come in the order in which the storage numbered them. A message that becomes visible, or is put back, may
/// get a new number behind all others, so that a walk to the end misses no message that stays in the queue.
/// Without this power and without an index operators see only the first 32 visible messages.
#[async_trait]
pub trait MessageLog: fmt::Debug + Send + Sync + 'static {
    /// Returns up to `count` (1 to 1,000) messages, only those of `state` if that is given, from the first
    /// message or from the [end](LogPage::next) of an earlier page. A page takes a bounded number of
    /// requests, so it may have fewer messages, or none, although there are further ones.
    ///
    /// # Errors
    /// `InvalidInput` if no page of this storage ended at `from`; otherwise only the errors of the contract
    /// of [`QueueStore`](crate::QueueStore).
    async fn logged(
        &self,
        queue: &QueueName,
        state: Option<LoggedState>,
        from: Option<&str>,
        count: u32,
    ) -> Result<LogPage, StoreError>;
}

/// The state of a message, as far as a [`MessageLog`] shows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LoggedState {
    /// The message is visible, or waits for another of its group, or is leased.
    Active,
    /// The message was put with a delay and never received.
    Delayed,
    /// The message was received and put back for a time.
    BackingOff,
}

impl LoggedState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Active, Self::Delayed, Self::BackingOff];
}

/// A message of a [`MessageLog`].
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct LoggedMessage {
    /// The message.
    pub message: PeekedMessage,
    /// Its state.
    pub state: LoggedState,
    /// The time at which it became or becomes visible, if the storage returns it.
    pub due: Option<SystemTime>,
}

impl LoggedMessage {
    /// Returns a message with its state and the time at which it became or becomes visible.
    pub fn new(message: PeekedMessage, state: LoggedState, due: Option<SystemTime>) -> Self {
        Self { message, state, due }
    }
}

/// Messages of a [`MessageLog`].
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct LogPage {
    /// The messages.
    pub messages: Vec<LoggedMessage>,
    /// The end of the page, if there may be further messages. Its text is like that of
    /// [`MessagePage::next`](super::MessagePage::next).
    pub next: Option<String>,
    /// True if the queue may have messages that no page shows, or the state or the text of a message could
    /// not be read.
    pub is_partial: bool,
}

impl LogPage {
    /// Returns a page with these messages.
    pub fn new(messages: Vec<LoggedMessage>) -> Self {
        Self { messages, ..Self::default() }
    }

    setters! {
        /// Sets the end of the page.
        with_next(next from Option<String>);
        /// Sets whether the page [is partial](Self::is_partial).
        with_partial(is_partial: bool);
    }
}
