//! A message received by hand.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio_util::sync::CancellationToken;

use super::decode::Rejection;
use super::leased_job::LeasedJob;
use crate::error::{Error, ErrorKind};
use crate::job::JobInfo;
use crate::job::outcome::Reason;
use crate::lease::LeaseError;

/// A leased message. The lease renews itself until the delivery is completed, released, dead-lettered or dropped.
///
/// Dropped without one of them, it is released: the message is visible again at once, without a counted attempt.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::{QueueMessage, Storage}; use serde::{Deserialize, Serialize}; use std::time::Duration;
/// # #[derive(Serialize, Deserialize, QueueMessage)]
/// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
/// # let storage = Storage::memory();
/// let mails = storage.queue::<Mail>().await?;
/// mails.send(&Mail { to: "ada@example.org".into() }).await?;
/// if let Some(delivery) = mails.receive(Duration::from_secs(1)).await? {
///     println!("to {}", delivery.message().to);
///     delivery.complete().await?;
/// }
/// # Ok(()) }
/// ```
#[must_use = "a delivery that is dropped is released"]
pub struct Delivery<M> {
    message: M,
    info: JobInfo,
    token: CancellationToken,
    leased_job: Option<LeasedJob>,
}

impl<M> Delivery<M> {
    pub(super) fn new(message: M, info: JobInfo, leased_job: LeasedJob) -> Self {
        let token = leased_job.lease.lost().clone();
        Self { message, info, token, leased_job: Some(leased_job) }
    }

    /// The message.
    pub fn message(&self) -> &M {
        &self.message
    }

    /// Returns what is known about the job besides its message.
    pub fn info(&self) -> &JobInfo {
        &self.info
    }

    /// Fires when the lease is lost, before another worker can have got the message: stop working on it.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Deletes the message: the work is done.
    ///
    /// # Errors
    /// [`is_lease_lost`](Error::is_lease_lost): the work may be done again by another.
    /// [`is_lease_uncertain`](Error::is_lease_uncertain): no answer told whether the message is deleted.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be deleted.
    pub async fn complete(mut self) -> Result<(), Error> {
        let leased_job = self.take()?;
        leased_job.end_turn().await?;
        leased_job.complete().await.map_err(|error| match error {
            LeaseError::Uncertain(_) => Error::new(
                ErrorKind::LeaseUncertain,
                "no answer told whether the message is deleted; it may be delivered again",
            )
            .with_source(error),
            _ => error.into(),
        })
    }

    /// Makes the message visible again after `delay` (at most 7 days), without counting an attempt.
    ///
    /// # Errors
    /// [`is_lease_lost`](Error::is_lease_lost), or what the storage says.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be put back; if not, it comes back when its lease is over.
    pub async fn release(mut self, delay: Duration) -> Result<(), Error> {
        let leased_job = self.take()?;
        leased_job.release_uncounted(delay).await
    }

    /// Counts a failed attempt and makes the message visible again after `delay` (at most 7 days); at the poison
    /// threshold it is dead-lettered instead.
    ///
    /// # Errors
    /// [`is_lease_lost`](Error::is_lease_lost), or what the storage says.
    ///
    /// # Cancel safety
    /// If the future is dropped, the attempt may or may not be counted; the message comes back when its lease is over at
    /// the latest. At the poison threshold, as [`dead_letter`](Self::dead_letter).
    pub async fn fail(mut self, delay: Duration, error: impl fmt::Display) -> Result<(), Error> {
        let leased_job = self.take()?;
        let text = error.to_string();
        if self.info.attempt >= self.info.max_attempts {
            leased_job.dead_letter_by_hand(Rejection::of_attempt(Reason::ATTEMPTS_EXHAUSTED, text)).await
        } else {
            leased_job.retry(delay, &text).await
        }
    }

    /// Moves the message to the dead-letter queue with this reason.
    ///
    /// # Errors
    /// [`is_lease_lost`](Error::is_lease_lost), or what the storage says; the message is then still in its queue.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may be in both queues, and comes back when its lease is over. Dead-lettering it
    /// again makes no second copy, as far as the first 32 dead letters show; it is never in neither queue.
    pub async fn dead_letter(mut self, reason: impl fmt::Display) -> Result<(), Error> {
        let rejection = Rejection::of_attempt(Reason::REJECTED, reason.to_string());
        self.take()?.dead_letter_by_hand(rejection).await
    }

    /// Saves progress with the message and renews the lease. Later deliveries find it by [`resume`](Self::resume).
    ///
    /// # Errors
    /// [`is_lease_lost`](Error::is_lease_lost): stop. [`is_lease_uncertain`](Error::is_lease_uncertain): finish, save no more.
    ///
    /// # Cancel safety
    /// If the future is dropped, the checkpoint may or may not be saved; the lease stays intact.
    pub async fn checkpoint<T: Serialize + ?Sized>(&self, progress: &T) -> Result<(), Error> {
        self.leased_job()?.save_progress(to_json(progress)?).await
    }

    /// Returns what [`checkpoint`](Self::checkpoint) saved last, in this or an earlier delivery.
    ///
    /// # Errors
    /// When it cannot be read as `T`, or its blob cannot be had.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn resume<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        self.leased_job()?.saved().await?.progress().map(from_json).transpose()
    }

    fn leased_job(&self) -> Result<&LeasedJob, Error> {
        self.leased_job.as_ref().ok_or_else(settled)
    }

    fn take(&mut self) -> Result<LeasedJob, Error> {
        self.leased_job.take().ok_or_else(settled)
    }
}

fn settled() -> Error {
    Error::new(ErrorKind::LeaseLost, "the message is settled already")
}

pub(crate) fn to_json<T: Serialize + ?Sized>(progress: &T) -> Result<String, Error> {
    serde_json::to_string(progress)
        .map_err(|e| Error::new(ErrorKind::Invalid, "the progress has no JSON form").with_source(e))
}

pub(crate) fn from_json<T: DeserializeOwned>(json: &str) -> Result<T, Error> {
    serde_json::from_str(json).map_err(|e| {
        let text = format!(
            "the checkpoint is not of the type asked for (line {}, column {}); keep reading what former releases saved",
            e.line(),
            e.column()
        );
        Error::new(ErrorKind::Undecodable, text)
    })
}

/// The message is not shown: it may be confidential.
impl<M> fmt::Debug for Delivery<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery").field("info", &self.info).finish_non_exhaustive()
    }
}

impl<M> Drop for Delivery<M> {
    fn drop(&mut self) {
        if let Some(leased_job) = self.leased_job.take() {
            leased_job.release_uncounted_later();
        }
    }
}
