//! Dead letters: jobs that failed for good, the reasons, and the way back.
//!
//! A dead letter is read, redriven or purged through [`DeadLetters`], which
//! [`Queue::dead_letters`](crate::Queue::dead_letters) returns. The [guide](crate::guide::dead_letters) has
//! the whole story.

pub(crate) mod duplicates;
pub(crate) mod held;
mod letter;
mod options;
pub(crate) mod pass;
pub(crate) mod pass_state;
pub(crate) mod revive;
pub(crate) mod untyped;

use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::queue_core::{Queue, QueueCore};
use crate::receive::read_text;
use crate::storage::QueueName;

pub use crate::delivery::PastDeadLetter;
pub use letter::DeadLetter;
pub use options::{DeadLetterOptions, ListedLetters, PurgeReport, RedriveReport, SkippedLetter, VisitReport};

pub(crate) use held::PassAction;
pub(crate) use untyped::DeadLetterQueue;

impl<M: QueueMessage> Queue<M> {
    /// Returns the queue's dead letters.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) if the queue's name leaves no room for `-poison`.
    pub fn dead_letters(&self) -> Result<DeadLetters<M>, Error> {
        DeadLetters::new(Arc::clone(self.core()))
    }
}

/// The dead-letter queue of a queue: `<queue>-poison`.
///
/// Dead letters never expire. A redrive keeps the job's id, payload, checkpoint and history, and gives it all
/// its attempts again. If the process crashes during a redrive, a job may be in both queues: make effects
/// idempotent by source and id.
///
/// Messages of another program, such as a WebJobs host that shares the queue, are listed with the reason
/// `unknown` and put back [unchanged, or on Service Bus under their id](crate::guide::dead_letters#redrive).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::dead_letters::DeadLetterOptions;
/// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize};
/// # use std::time::Duration;
/// # #[derive(Serialize, Deserialize, QueueMessage)]
/// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
/// # let mails = Storage::memory().queue::<Mail>().await?;
/// # mails.send(&Mail { to: "lost".into() }).await?;
/// # mails.receive(Duration::ZERO).await?.ok_or("none")?.dead_letter(jobqueue::Reason::REJECTED, "no such address").await?;
/// let dead = mails.dead_letters()?;
/// for letter in dead.peek().await? {
///     println!("{}: {} after {} attempts", letter.id, letter.reason, letter.attempts);
/// }
/// let options = DeadLetterOptions::new().filter(|letter| letter.reason == "rejected").per_second(10);
/// let redriven = dead.redrive(options).await?;
/// assert_eq!(redriven.moved.len(), 1);
/// # Ok(()) }
/// ```
pub struct DeadLetters<M> {
    letters: DeadLetterQueue,
    message: PhantomData<fn() -> M>,
}

impl<M: QueueMessage> DeadLetters<M> {
    pub(crate) fn new(core: Arc<QueueCore>) -> Result<Self, Error> {
        Ok(Self { letters: DeadLetterQueue::new(core, M::KIND)?, message: PhantomData })
    }

    /// Returns the name of the dead-letter queue.
    pub fn name(&self) -> &QueueName {
        self.letters.name()
    }

    /// Returns the approximate number of dead letters; 0 if the dead-letter queue does not exist yet.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the dead-letter queue cannot be read.
    pub async fn approximate_len(&self) -> Result<u64, Error> {
        self.letters.count().await
    }

    /// Returns whether there are no dead letters.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the dead-letter queue cannot be read.
    pub async fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.approximate_len().await? == 0)
    }

    /// Returns the first dead letters, at most 32, without changing anything. Dead letters that a reader has
    /// leased are not among them.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the dead-letter queue cannot be read.
    pub async fn peek(&self) -> Result<Vec<DeadLetter>, Error> {
        Ok(self.letters.peek().await?.letters)
    }

    /// Reads the message of a dead letter as a worker would: decoded by the codec of its type, upgraded from
    /// a former version, validated, and read from its blob if it was too large for the queue. Changes
    /// nothing.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::dead_letters::DeadLetterOptions;
    /// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize};
    /// # use std::time::Duration;
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
    /// # let mails = Storage::memory().queue::<Mail>().await?;
    /// # for to in ["ada@example.org", "bob@example.com"] {
    /// #     mails.send(&Mail { to: to.into() }).await?;
    /// #     mails.receive(Duration::ZERO).await?.ok_or("none")?.dead_letter(jobqueue::Reason::REJECTED, "host not found").await?;
    /// # }
    /// let dead = mails.dead_letters()?;
    /// let mut mended = Vec::new();
    /// for letter in dead.list().await?.letters {
    ///     match dead.message(&letter).await {
    ///         Ok(mail) if mail.to.ends_with("@example.org") => mended.push(letter.id),
    ///         Ok(_) => {}
    ///         Err(error) => eprintln!("{}: {error}", letter.id),
    ///     }
    /// }
    /// let redriven = dead.redrive(DeadLetterOptions::new().filter(move |letter| mended.contains(&letter.id))).await?;
    /// assert_eq!((redriven.moved.len(), redriven.left), (1, 1));
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`Undecodable`](crate::ErrorKind::Undecodable): the message has another kind or a newer version,
    ///   cannot be read, breaks the rules of its type, or its payload's blob is gone. A message that was
    ///   dead-lettered for such a reason fails here for the same reason.
    /// - [`Storage`](crate::ErrorKind::Storage): the storage failed; retryable if it may recover.
    pub async fn message(&self, letter: &DeadLetter) -> Result<M, Error> {
        read_text(&self.letters.core, &self.letters.text(letter).await?).await
    }

    /// Reads the raw text of a dead letter. For a message that could not be read as a job, this is the
    /// original text, from its blob if it was too large for the queue. For any other message, it is the event
    /// as stored in the dead-letter queue.
    ///
    /// Any program that can write to the queue may have written this text: treat it as untrusted data.
    ///
    /// # Errors
    /// - [`Undecodable`](crate::ErrorKind::Undecodable): the storage could not read the text, or its blob is
    ///   gone.
    /// - [`Storage`](crate::ErrorKind::Storage): the storage failed; retryable if it may recover.
    pub async fn text(&self, letter: &DeadLetter) -> Result<String, Error> {
        self.letters.text(letter).await
    }

    /// Reads all dead letters, each with its text of at most 64 KiB. If there are many,
    /// [`for_each`](Self::for_each) needs less memory. The dead letters are invisible to other readers during
    /// the call, for at most 10 minutes, and visible again afterwards. Dead letters that another reader has
    /// leased are not returned, but [counted](ListedLetters::unseen).
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the dead-letter queue, or a part of it, cannot be read, if
    /// an answer was lost and some dead letters were not seen, or if the first dead letters become visible
    /// again before all were read.
    ///
    /// # Cancel safety
    /// If the future is dropped, dead letters that it has leased become visible again after at most 10
    /// minutes.
    pub async fn list(&self) -> Result<ListedLetters, Error> {
        let mut letters = Vec::new();
        let VisitReport { unseen, .. } = self.for_each(|letter| letters.push(letter.clone())).await?;
        Ok(ListedLetters { letters, unseen })
    }

    /// Calls `visit` with each dead letter in turn, and keeps only their ids in memory. The dead letters are
    /// invisible to other readers during the call, as with [`list`](Self::list). Returns how many were visited,
    /// and how many were not.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, Reason, Storage}; use serde::{Deserialize, Serialize};
    /// # use std::{collections::BTreeMap, time::Duration};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
    /// # let mails = Storage::memory().queue::<Mail>().await?;
    /// # mails.send(&Mail { to: "lost".into() }).await?;
    /// # mails.receive(Duration::ZERO).await?.ok_or("none")?.dead_letter(jobqueue::Reason::REJECTED, "no such address").await?;
    /// let mut reasons = BTreeMap::<Reason, u64>::new();
    /// let dead = mails.dead_letters()?;
    /// let visited = dead.for_each(|letter| *reasons.entry(letter.reason.clone()).or_default() += 1).await?;
    /// assert_eq!(reasons[&Reason::REJECTED], 1);
    /// if visited.unseen != Some(0) {
    ///     eprintln!("other readers hold dead letters, or new ones arrived: count again in ten minutes");
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) as for [`list`](Self::list); `visit` may have been called with
    /// some of the dead letters.
    ///
    /// # Cancel safety
    /// As for [`list`](Self::list).
    pub async fn for_each(&self, mut visit: impl FnMut(&DeadLetter) + Send) -> Result<VisitReport, Error> {
        let report = self.letters.pass(&DeadLetterOptions::new(), PassAction::Report, &mut visit).await?;
        match report.stopped {
            Some(why) => {
                let is_retryable = why != pass::TOO_MANY_LETTERS;
                Err(Error::new(ErrorKind::Storage, why).with_retryable(is_retryable))
            }
            None => Ok(report.into()),
        }
    }

    /// Puts dead letters back into their queue. Returns a report.
    ///
    /// A redrive handles the dead letters that exist when it begins: a job that is dead-lettered again during
    /// the redrive stays a dead letter. A dead letter that cannot be put back is skipped and
    /// [reported](RedriveReport::skipped), and the others are put back: read the report. After three failures
    /// of the storage in a row, the redrive [stops](RedriveReport::stopped).
    ///
    /// A redriven job gets copies of its blobs: redriving a job with a large payload costs a read, a write
    /// and a deletion of the payload.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the dead-letter queue cannot be read at all; nothing was put
    /// back.
    ///
    /// # Cancel safety
    /// If the future is dropped, dead letters that it has leased become visible again after at most 10
    /// minutes. A job that it was moving may be in both queues.
    pub async fn redrive(&self, options: DeadLetterOptions) -> Result<RedriveReport, Error> {
        let action = if options.dry_run { PassAction::ReportPutBack } else { PassAction::PutBack };
        self.letters.pass(&options, action, &mut |_| {}).await
    }

    /// Deletes the dead letters that the filter of `options` selects, with their payloads. Returns a report.
    /// A purge cannot be undone: look at the dead letters first, with [`list`](Self::list) or by a [dry
    /// run](DeadLetterOptions::dry_run). A job that was put back keeps its payload. A dead letter that cannot
    /// be deleted is skipped and [reported](PurgeReport::skipped).
    ///
    /// A batch that [waits](crate::batch::OnDeadLetters::Wait) for the job of a deleted dead letter never
    /// continues.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, Storage, dead_letters::DeadLetterOptions}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
    /// # let mails = Storage::memory().queue::<Mail>().await?;
    /// # mails.send(&Mail { to: "lost".into() }).await?;
    /// # mails.receive(std::time::Duration::ZERO).await?.ok_or("none")?.dead_letter(jobqueue::Reason::REJECTED, "no such address").await?;
    /// let dead = mails.dead_letters()?;
    /// let lost = DeadLetterOptions::new().filter(|letter| letter.reason == "rejected");
    /// assert_eq!(dead.purge(lost.clone().dry_run(true)).await?.deleted.len(), 1);
    /// assert_eq!(dead.purge(lost).await?.deleted.len(), 1);
    /// assert!(dead.is_empty().await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// - [`Invalid`](crate::ErrorKind::Invalid): the options have no filter. `.filter(|_| true)` selects all
    ///   dead letters.
    /// - [`Storage`](crate::ErrorKind::Storage): the dead-letter queue cannot be read at all; nothing was
    ///   deleted.
    ///
    /// # Cancel safety
    /// If the future is dropped, deleted dead letters stay deleted; a sweep deletes payloads that are left.
    /// Dead letters that it has leased become visible again after at most 10 minutes.
    pub async fn purge(&self, options: DeadLetterOptions) -> Result<PurgeReport, Error> {
        if !options.has_filter() {
            let text = "a purge needs a filter; `.filter(|_| true)` selects all dead letters";
            return Err(Error::new(ErrorKind::Invalid, text));
        }
        let action = if options.dry_run { PassAction::Report } else { PassAction::Delete };
        Ok(self.letters.pass(&options, action, &mut |_| {}).await?.into())
    }
}

jobqueue_storage::debug_fields! {
    DeadLetters<M>(letters.name())
}
