//! The queue as applications see it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::dead_letters::DeadLetters;
use super::decode::{Decoded, Incoming, Kinds, Rejection};
use super::deferral::{Cause, Deferred};
use super::delivery::Delivery;
use super::leased_job::LeasedJob;
use super::queue_core::{QueueCore, QueueCoreOptions};
use super::send::Sent;
use crate::clock::WITHOUT_END;
use crate::codec::decode_any_version;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::{Reason, chain};
use crate::message::{DecodeError, QueueMessage};
use crate::name::QueueName;
use crate::settings::QueueSettings;
use crate::storage::{MAX_MESSAGES, Storage, StoreErrorKind};

/// Between two looks of [`Queue::receive`] at a queue on a storage that cannot ring, in the end.
const MAX_RECEIVE_PAUSE: Duration = Duration::from_secs(2);
/// The time that a message that no program knows is left to others each time, once it has waited for long.
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
    /// The queue of `M`, [`QueueMessage::QUEUE`]. It is created if it is missing, with what the type declares.
    ///
    /// # Errors
    /// What the storage says, permissions first of all.
    ///
    /// # Cancel safety
    /// The queue may have been created; nothing else is begun.
    pub async fn queue<M: QueueMessage>(&self) -> Result<Queue<M>, Error> {
        self.queue_named(M::QUEUE).await
    }

    /// A queue of `M` under another name.
    ///
    /// # Errors
    /// A name that is not allowed, or what the storage says.
    ///
    /// # Cancel safety
    /// The queue may have been created; nothing else is begun.
    pub async fn queue_named<M: QueueMessage>(&self, name: &str) -> Result<Queue<M>, Error> {
        let options = QueueCoreOptions { defaults: M::DEFAULTS, ..QueueCoreOptions::default() };
        Ok(Queue::of(QueueCore::open(self, QueueName::new(name)?, options).await?))
    }
}

impl<M: QueueMessage> Queue<M> {
    pub(crate) fn of(core: Arc<QueueCore>) -> Self {
        Self { core, message: PhantomData }
    }

    /// The queue's name.
    pub fn name(&self) -> &QueueName {
        &self.core.name
    }

    /// Cancels a job whose message nobody has received yet. Returns false if somebody has received it, or if it is gone. Unique work can
    /// be cancelled by its key, from other processes too: [`cancel_unique`](Self::cancel_unique).
    ///
    /// # Errors
    /// [`is_outcome_unknown`](Error::is_outcome_unknown): the job may run or not, because an answer to the cancellation was lost, or an
    /// answer to the send, so that a second message may be stored. Of a job [in order](super::SendOptions::in_order) no second message runs.
    /// After a lost answer to the cancellation the next job of its key completes the cancellation, because it does not wait in vain.
    /// Otherwise the errors of the storage.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be deleted; a message in order also later, as after an error.
    pub async fn cancel(&self, sent: &Sent) -> Result<bool, Error> {
        let Some(stored) = &sent.stored else { return Ok(false) };
        self.core.cancel_message(sent.position, stored).await.map_err(|not| not.error)
    }

    /// Waits up to `wait` for a message and leases it; `None` if none came. What cannot be read on the way is
    /// dead-lettered.
    ///
    /// For work that does not fit a handler. Messages come in any order, also those sent
    /// [in order](super::SendOptions::in_order); they give up their positions when they are completed or dead-lettered. Children of a
    /// [batch](crate::batch::Batch) are counted by a [`Worker`](crate::Worker) only: completed by hand, they leave their batch
    /// waiting for them.
    ///
    /// # Errors
    /// What the storage says.
    ///
    /// # Cancel safety
    /// If the future is dropped, a message it was about to return comes back when its lease is over, or at once.
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

    /// The delivery of a message of this type; settles any other.
    async fn open(&self, incoming: Incoming) -> Result<Option<Delivery<M>>, Error> {
        let (leased_job, decoded) = self.core.decode(incoming, &KindsOf::<M>(PhantomData)).await;
        match decoded {
            Decoded::Ready(data) => return self.read_payload(leased_job, &data).await,
            Decoded::Rejected(rejection) => leased_job.dead_letter_by_hand(rejection).await?,
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
                leased_job.keep_expected();
                return Ok(Some(Delivery::new(message, info, leased_job)));
            }
            (Err(error), _) if error.is_newer_version() => {
                self.leave(&leased_job, Cause::NewerVersion, &chain(&error)).await?;
            }
            (Err(error), _) => leased_job.dead_letter_by_hand(Rejection::undecodable(&error)).await?,
            // No event has no payload either.
            (Ok(_), None) => {}
        }
        Ok(None)
    }

    /// Leaves a message to others, or to a time when it can be read.
    async fn leave(&self, leased_job: &LeasedJob, cause: Cause, detail: &str) -> Result<(), Error> {
        match leased_job.defer(cause, detail).await? {
            Deferred::PutBack(_) => Ok(()),
            // A worker judges whether anybody knows it: a program that receives by hand knows one kind of perhaps many.
            Deferred::Over(_) if matches!(cause, Cause::UnknownKind | Cause::NewerVersion) => {
                leased_job.release_uncounted(NOT_MINE).await
            }
            Deferred::Over(rejection) => leased_job.dead_letter_by_hand(rejection).await,
        }
    }

    /// Looks at up to 32 visible messages without leasing them.
    ///
    /// # Errors
    /// What the storage says. What cannot be read stands in the list as an error.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn peek(&self) -> Result<Vec<Result<M, Error>>, Error> {
        let peeked = self.core.store().peek(&self.core.name, MAX_MESSAGES).await?;
        let mut messages = Vec::with_capacity(peeked.len());
        for message in peeked {
            messages.push(match &message.text {
                Ok(text) => self.core.read::<M>(text).await,
                Err(problem) => Err(Error::new(ErrorKind::Undecodable, problem.clone())),
            });
        }
        Ok(messages)
    }

    /// About how many messages there are, invisible ones included; never below the real number. SQLite counts them: some 40 ms
    /// for a million on a machine with nothing else to do, on the thread that only reads.
    ///
    /// # Errors
    /// What the storage says.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn approximate_len(&self) -> Result<u64, Error> {
        Ok(self.core.store().queue_properties(&self.core.name).await?.approximate_count)
    }

    /// Returns whether there is no message, invisible ones included.
    ///
    /// # Errors
    /// What the storage says.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.approximate_len().await? == 0)
    }

    /// The settings that hold for this queue, at most 30 seconds old.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn settings(&self) -> Arc<QueueSettings> {
        self.core.fresh_settings().await
    }

    /// The queue's dead letters.
    ///
    /// # Errors
    /// When the queue's name leaves no room for `-poison`.
    pub fn dead_letters(&self) -> Result<DeadLetters<M>, Error> {
        DeadLetters::new(Arc::clone(&self.core))
    }

    /// Deletes all messages, also those that are being worked on. Their payloads in blobs are left to a sweep.
    ///
    /// # Errors
    /// What the storage says.
    ///
    /// # Cancel safety
    /// If the future is dropped, messages may or may not be deleted: all of them, none or, on shards, some. Clear again.
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
    /// For a payload that is not of its type.
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
