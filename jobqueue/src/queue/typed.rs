//! The queue as applications see it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::dead_letter::dead_letter_by_hand;
use super::dead_letters::DeadLetters;
use super::decode::{Decoded, Incoming, Kinds, Rejection, decode};
use super::deferral::{Cause, Deferred, defer};
use super::delivery::Delivery;
use super::leased_job::LeasedJob;
use super::queue_core::{QueueCore, QueueCoreOptions};
use super::read::read_text;
use super::send::Sent;
use crate::clock::WITHOUT_END;
use crate::codec::decode_any_version;
use crate::error::{Error, ErrorKind};
use crate::fifo;
use crate::job::outcome::{Reason, chain};
use crate::message::{DecodeError, QueueMessage};
use crate::name::QueueName;
use crate::settings::QueueSettings;
use crate::storage::{MAX_MESSAGES, StateCounts, Storage, StoreErrorKind};

/// The longest pause between two requests of [`Queue::receive`] to an empty queue, on storages that cannot notify.
const MAX_RECEIVE_PAUSE: Duration = Duration::from_secs(2);
/// The put-back of a message that no program knows, once it has waited for long.
const NOT_MINE: Duration = Duration::from_secs(300);

/// A queue of messages of type `M`. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::{QueueMessage, Storage};
/// use serde::{Deserialize, Serialize};
/// use std::time::Duration;
///
/// #[derive(Serialize, Deserialize, QueueMessage)]
/// #[message(queue = "mails", kind = "mail")]
/// struct Mail {
///     #[message(email)]
///     to: String,
/// }
///
/// let storage = Storage::memory();
/// let mails = storage.queue::<Mail>().await?;
/// mails.send(&Mail { to: "ada@example.org".into() }).await?;
/// mails.send(&Mail { to: "bob@example.org".into() }).delay(Duration::from_secs(60)).await?;
/// assert_eq!(mails.approximate_len().await?, 2);
/// # Ok(()) }
/// ```
pub struct Queue<M> {
    core: Arc<QueueCore>,
    message: PhantomData<fn() -> M>,
}

impl Storage {
    /// Opens the queue of `M`, [`QueueMessage::QUEUE`]. Creates it with the defaults of the type if it does not
    /// exist.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) for a bad name, [`Storage`](crate::ErrorKind::Storage) if the storage
    /// fails or a permission is missing.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may have been created; nothing else has changed.
    pub async fn queue<M: QueueMessage>(&self) -> Result<Queue<M>, Error> {
        self.queue_named(M::QUEUE).await
    }

    /// Opens a queue of `M` under another name.
    ///
    /// # Errors
    /// Those of [`queue`](Self::queue).
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may have been created; nothing else has changed.
    pub async fn queue_named<M: QueueMessage>(&self, name: &str) -> Result<Queue<M>, Error> {
        let options = QueueCoreOptions { defaults: M::DEFAULTS, ..QueueCoreOptions::default() };
        Ok(Queue::of(QueueCore::open(self, QueueName::new(name)?, options).await?))
    }
}

impl<M: QueueMessage> Queue<M> {
    pub(crate) fn of(core: Arc<QueueCore>) -> Self {
        Self { core, message: PhantomData }
    }

    /// Returns the queue's name.
    pub fn name(&self) -> &QueueName {
        &self.core.name
    }

    /// Cancels a job whose message nobody has received yet. Returns false if somebody has received the message or it
    /// is gone. Any process can cancel unique work by its key: [`cancel_unique`](Self::cancel_unique).
    ///
    /// # Errors
    /// - [`is_outcome_unknown`](Error::is_outcome_unknown): the job may run or not. Either an answer to the
    ///   cancellation was lost, or an answer to the send, so that a second message may be stored. Of a job [in
    ///   order](super::SendOptions::in_order) no second message runs; after a lost answer to its cancellation, the
    ///   next job of its key completes the cancellation.
    /// - [`Storage`](crate::ErrorKind::Storage): the storage failed, and the job is not cancelled.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be deleted. The message of a job in order may also be
    /// deleted later.
    pub async fn cancel(&self, sent: &Sent) -> Result<bool, Error> {
        let Some(stored) = &sent.stored else { return Ok(false) };
        fifo::cancel_message(&self.core, sent.position, stored).await.map_err(|not| not.error)
    }

    /// Waits up to `wait` for a message and leases it. Returns `None` if none arrived. Dead-letters unreadable
    /// messages that it meets.
    ///
    /// Use it for work that does not fit a handler. Messages arrive in any order, even if they were sent [in
    /// order](super::SendOptions::in_order); they give up their positions when they are completed or dead-lettered.
    /// Only a [`Worker`](crate::Worker) counts the children of a [batch](crate::batch::Batch): a child that is
    /// completed by hand leaves its batch waiting.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
    ///
    /// # Cancel safety
    /// If the future is dropped, a message that it was about to return becomes visible again at once, or when its
    /// lease runs out.
    pub async fn receive(&self, wait: Duration) -> Result<Option<Delivery<M>>, Error> {
        let give_up = Instant::now() + wait.min(WITHOUT_END);
        let mut idle = self.core.idle(MAX_RECEIVE_PAUSE);
        loop {
            let settings = self.core.fresh_settings().await;
            let (received, requested) = self.core.get(1, &settings).await?;
            let next = received.next_visible_in;
            if let Some(leased) = received.messages.into_iter().next() {
                idle.reset();
                if let Some(delivery) = self.open(Incoming { leased, requested, settings }).await? {
                    return Ok(Some(delivery));
                }
                if Instant::now() >= give_up {
                    return Ok(None);
                }
                continue;
            }
            if tokio::time::timeout_at(give_up, idle.pause(next)).await.is_err() {
                return Ok(None);
            }
        }
    }

    /// Returns the delivery of a message of this type; settles any other.
    async fn open(&self, incoming: Incoming) -> Result<Option<Delivery<M>>, Error> {
        let (leased_job, decoded) = decode(&self.core, incoming, &KindsOf::<M>(PhantomData)).await;
        match decoded {
            Decoded::Ready(data) => return self.read_payload(leased_job, &data).await,
            Decoded::Rejected(rejection) => dead_letter_by_hand(&leased_job, rejection).await?,
            Decoded::NotYet(wait) => leased_job.release_uncounted(wait).await?,
            Decoded::UnknownKind => {
                self.leave(&leased_job, Cause::UnknownKind, "it is of another kind").await?
            }
            Decoded::Unavailable(error) => {
                let cause = if error.is_missing() { Cause::PayloadMissing } else { Cause::PayloadUnreadable };
                self.leave(&leased_job, cause, &chain(&error)).await?;
            }
        }
        Ok(None)
    }

    async fn read_payload(&self, leased_job: LeasedJob, data: &[u8]) -> Result<Option<Delivery<M>>, Error> {
        let version = leased_job.with_envelope(|event| event.version).flatten();
        match (decode_any_version::<M>(version, data), leased_job.info()) {
            (Ok((version, message)), Some(mut info)) => {
                info.version = version;
                leased_job.end_wait();
                fifo::keep_expected(&leased_job);
                return Ok(Some(Delivery::new(message, info, leased_job)));
            }
            (Err(error), _) if error.is_newer_version() => {
                self.leave(&leased_job, Cause::NewerVersion, &chain(&error)).await?;
            }
            (Err(error), _) => dead_letter_by_hand(&leased_job, Rejection::undecodable(&error)).await?,
            // A text that is not an event has no payload.
            (Ok(_), None) => {}
        }
        Ok(None)
    }

    /// Leaves a message to other programs, or to a time when it can be read.
    async fn leave(&self, leased_job: &LeasedJob, cause: Cause, detail: &str) -> Result<(), Error> {
        match defer(leased_job, cause, detail).await? {
            Deferred::PutBack(_) => Ok(()),
            // Only workers judge whether anybody knows a message: a program that receives by hand may know one kind
            // of many.
            Deferred::Over(_) if matches!(cause, Cause::UnknownKind | Cause::NewerVersion) => {
                leased_job.release_uncounted(NOT_MINE).await
            }
            Deferred::Over(rejection) => dead_letter_by_hand(leased_job, rejection).await,
        }
    }

    /// Returns up to 32 visible messages without leasing them.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails. A message that cannot be read is an error in the
    /// list.
    ///
    /// # Cancel safety
    /// This only reads; dropping the future changes nothing.
    pub async fn peek(&self) -> Result<Vec<Result<M, Error>>, Error> {
        let peeked = self.core.store().peek(&self.core.name, MAX_MESSAGES).await?;
        let mut messages = Vec::with_capacity(peeked.len());
        for message in peeked {
            messages.push(match &message.text {
                Ok(text) => read_text(&self.core, text).await,
                Err(problem) => Err(Error::new(ErrorKind::Undecodable, problem.clone())),
            });
        }
        Ok(messages)
    }

    /// Returns the approximate number of messages, invisible ones included; never below the real number. SQLite
    /// counts them on its reading thread: about 40 ms for a million on an idle machine.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn approximate_len(&self) -> Result<u64, Error> {
        Ok(self.core.store().queue_properties(&self.core.name).await?.approximate_count)
    }

    /// Returns the number of messages that wait, that are delayed, that back off and that run. `None` where the storage
    /// cannot tell: SQLite and memory can; Azure Storage and Service Bus cannot.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize}; use std::time::Duration;
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
    /// # let mails = Storage::memory().queue::<Mail>().await?;
    /// # let mail = Mail { to: "ada@example.org".into() };
    /// mails.send(&mail).await?;
    /// mails.send(&mail).delay(Duration::from_secs(60)).await?;
    /// if let Some(counts) = mails.counts_by_state().await? {
    ///     println!("{} wait, {} run", counts.waiting, counts.running);
    /// #   assert_eq!((counts.waiting, counts.delayed, counts.total()), (1, 1, 2));
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn counts_by_state(&self) -> Result<Option<StateCounts>, Error> {
        Ok(self.core.store().counts_by_state(&self.core.name).await?)
    }

    /// Returns whether the queue has no message, invisible ones included.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
    ///
    /// # Cancel safety
    /// This only reads; dropping the future changes nothing.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.approximate_len().await? == 0)
    }

    /// Returns the settings of this queue, at most 30 seconds old.
    ///
    /// # Cancel safety
    /// This only reads; dropping the future changes nothing.
    pub async fn settings(&self) -> Arc<QueueSettings> {
        self.core.fresh_settings().await
    }

    /// Returns the queue's dead letters.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the queue's name leaves no room for `-poison`.
    pub fn dead_letters(&self) -> Result<DeadLetters<M>, Error> {
        DeadLetters::new(Arc::clone(&self.core))
    }

    /// Deletes all messages, including those of running jobs. A sweep deletes their payload blobs later.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails. Clear the queue again: until then, a job in order whose
    /// message is gone may hold up the next of its key, for some eight minutes.
    ///
    /// # Cancel safety
    /// If the future is dropped, all, none or (on shards) some messages may be deleted. Clear the queue again.
    pub async fn clear(&self) -> Result<(), Error> {
        match self.core.store().clear(&self.core.name).await {
            Err(e) if e.kind() != StoreErrorKind::QueueNotFound => Err(e.into()),
            _ => Ok(self.core.fifo.clear().await?),
        }
    }

    pub(crate) fn core(&self) -> &Arc<QueueCore> {
        &self.core
    }
}

/// The kinds of one message type.
struct KindsOf<M>(PhantomData<fn() -> M>);

impl<M: QueueMessage> Kinds for KindsOf<M> {
    fn of_raw(&self) -> Option<&'static str> {
        Some(M::KIND)
    }

    fn knows(&self, kind: &str) -> bool {
        M::accepts(kind)
    }
}

impl Rejection {
    /// Returns the rejection of a payload that is not of its type.
    pub(crate) fn undecodable(error: &DecodeError) -> Self {
        let reason = match error {
            DecodeError::Invalid(_) => Reason::INVALID,
            _ => Reason::DECODE_ERROR,
        };
        Self::new(reason, chain(error))
    }
}

impl<M> Clone for Queue<M> {
    fn clone(&self) -> Self {
        Self { core: Arc::clone(&self.core), message: PhantomData }
    }
}

impl<M> fmt::Debug for Queue<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Queue").field(&self.core.name).finish()
    }
}
