//! The results of sends.

use std::ops::Deref;
use std::sync::Arc;

use crate::error::Error;
use crate::group_log::EntryRef;
use crate::undelivered::StoredMessage;

/// A sent message. [`Queue::cancel`](crate::Queue::cancel) can cancel its job.
///
/// A `Sent` proves that the job is stored: the job runs to its end or becomes a dead letter, unless it is
/// cancelled, expires, or was done before. Keep the [id](Self::id) to find the job again, in logs or by
/// `jobqueue_admin::Admin::explain`.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
/// # let storage = Storage::memory();
/// let mails = storage.queue::<Mail>().await?;
/// let sent = mails.send(&Mail { to: "ada@example.org".into() }).id("welcome-1").await?;
/// assert_eq!(sent.id(), "welcome-1");
/// assert!(mails.cancel(&sent).await?);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sent {
    pub(super) id: Arc<str>,
    /// The stored message; `None` if the job was done already.
    pub(super) stored: Option<StoredMessage>,
    /// The job's position in its FIFO group.
    pub(super) position: Option<EntryRef>,
    /// Present if the job was sent as unique work. Boxed because most jobs are not.
    pub(super) unique: Option<Box<UniqueRef>>,
}

/// The key and the source of a job that was sent as unique work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct UniqueRef {
    pub(super) key: Arc<str>,
    pub(super) source: Arc<str>,
}

impl Sent {
    /// Returns the job's id.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Returns whether the job was completed before this send, so that no message was stored. The framework
    /// recognises only a job that is sent [in order](crate::SendOptions::in_order) again under an explicit
    /// id, with the same key, on a storage where a [log](crate::guide::coordination#order-by-a-log) keeps the
    /// order. The payload does not count: a later release, or a codec that encrypts, writes another payload
    /// for the same job.
    pub fn was_done(&self) -> bool {
        self.stored.is_none()
    }
}

/// The answers of [`Queue::send_all`](crate::Queue::send_all): one for each message, in the order of the
/// list. Derefs to a slice of them, and iterates over them.
///
/// Some messages may be stored while others are not. [`into_result`](Self::into_result) fails unless all are
/// stored.
#[derive(Debug)]
#[must_use = "each message has an answer of its own; `into_result()?` fails unless all messages are stored"]
pub struct SendAnswers(pub(super) Vec<Result<Sent, Error>>);

impl SendAnswers {
    /// Returns the sent messages if all messages are stored.
    ///
    /// # Errors
    /// The first error among the answers. It is that of one message: others may be stored.
    pub fn into_result(self) -> Result<Vec<Sent>, Error> {
        self.0.into_iter().collect()
    }
}

impl Deref for SendAnswers {
    type Target = [Result<Sent, Error>];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl IntoIterator for SendAnswers {
    type Item = Result<Sent, Error>;
    type IntoIter = std::vec::IntoIter<Self::Item>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a> IntoIterator for &'a SendAnswers {
    type Item = &'a Result<Sent, Error>;
    type IntoIter = std::slice::Iter<'a, Result<Sent, Error>>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}
