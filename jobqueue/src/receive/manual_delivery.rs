//! A message that an application receives by hand.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::clock::WITHOUT_END;
use crate::delivery::{
    CheckpointOutcome, LeasedJob, Rejection, dead_letter_by_hand, end_turn, load_saved, save_progress,
    to_json,
};
use crate::error::{Error, ErrorKind};
use crate::group_log::EndState;
use crate::job::outcome::{Outcome, Reason, chain};
use crate::job::{BoxError, JobInfo};
use crate::lease::LeaseError;

/// A leased message.
///
/// The lease is renewed until the delivery is completed, released, dead-lettered or dropped. Dropping the
/// delivery releases it: the message is visible again at once, and no attempt is counted.
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
    pub(crate) fn new(message: M, info: JobInfo, leased_job: LeasedJob) -> Self {
        // If the lease has already ended, the token has fired.
        leased_job.lease.begin_run();
        let token = leased_job.lease.stop_token().clone();
        Self { message, info, token, leased_job: Some(leased_job) }
    }

    /// Returns the message.
    pub fn message(&self) -> &M {
        &self.message
    }

    /// Returns the job's metadata.
    pub fn info(&self) -> &JobInfo {
        &self.info
    }

    /// Returns a token that fires when the lease is lost, before another worker can receive the message, or
    /// when the maximum run time is over. Stop working on the message then.
    pub fn token(&self) -> &CancellationToken {
        &self.token
    }

    /// Deletes the message: the work is done. For a job [in order](crate::SendOptions::in_order), first
    /// updates the log of its key, and retries that until the lease ends. While the storage fails, the
    /// deletion is retried until shortly before the lease ends, too; so are the changes of
    /// [`release`](Self::release), [`fail`](Self::fail) and [`dead_letter`](Self::dead_letter).
    ///
    /// # Errors
    /// - [`is_lease_lost`](Error::is_lease_lost): another worker may do the work again.
    /// - [`Storage`](ErrorKind::Storage): the log of the key could not be updated, and another worker may do
    ///   the work again.
    /// - [`is_lease_uncertain`](Error::is_lease_uncertain): no answer arrived; the message may or may not be
    ///   deleted.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be deleted.
    pub async fn complete(mut self) -> Result<(), Error> {
        complete(self.take()?).await
    }

    /// Makes the message visible again after `delay` (at most 7 days) without counting an attempt. For a job
    /// [in order](crate::SendOptions::in_order), first records a delay of more than 59 seconds in the log of
    /// its key. While the log cannot be changed, retries that until the maximum run time is over (12 hours by
    /// default), and for at least 15 minutes.
    ///
    /// # Errors
    /// [`is_lease_lost`](Error::is_lease_lost) if another worker may have the message,
    /// [`Storage`](ErrorKind::Storage) if the storage fails.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be put back. If not, it becomes visible when its
    /// lease runs out.
    pub async fn release(mut self, delay: Duration) -> Result<(), Error> {
        release(self.take()?, delay).await
    }

    /// Counts a failed attempt and makes the message visible again after `delay` (at most 7 days). At the
    /// poison threshold, dead-letters the message instead. Stores the error and its causes with the message.
    /// Records the delay of a job in order as [`release`](Self::release) does.
    ///
    /// # Errors
    /// [`is_lease_lost`](Error::is_lease_lost) if another worker may have the message,
    /// [`Storage`](ErrorKind::Storage) if the storage fails.
    ///
    /// # Cancel safety
    /// If the future is dropped, the attempt may or may not be counted. The message becomes visible when its
    /// lease runs out at the latest. At the poison threshold, see [`dead_letter`](Self::dead_letter).
    pub async fn fail(mut self, delay: Duration, error: impl Into<BoxError>) -> Result<(), Error> {
        let leased_job = self.take()?;
        let text = chain(&*error.into());
        if self.info.attempt >= self.info.max_attempts {
            dead_letter(leased_job, Rejection::of_attempt(Reason::ATTEMPTS_EXHAUSTED, text)).await
        } else {
            retry(leased_job, delay, text).await
        }
    }

    /// Moves the message to the dead-letter queue, with the error, its causes, and a reason by which
    /// operators select letters to redrive or to purge. [`Reason::REJECTED`] says that the work was refused
    /// permanently. If the job is [in order](crate::SendOptions::in_order) and another message of it was
    /// already completed, deletes this message instead.
    ///
    /// # Errors
    /// [`is_lease_lost`](Error::is_lease_lost) if another worker may have the message,
    /// [`Storage`](ErrorKind::Storage) if the storage fails. The message is then still in its queue.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may be in both queues, but never in neither. It becomes visible
    /// again when its lease runs out. Dead-lettering it again stores no second copy if the first is among the
    /// first 32 dead letters.
    pub async fn dead_letter(mut self, reason: Reason, error: impl Into<BoxError>) -> Result<(), Error> {
        let rejection = Rejection::of_attempt(reason, chain(&*error.into()));
        dead_letter(self.take()?, rejection).await
    }

    /// Saves progress with the message and renews the lease. Later deliveries read it with
    /// [`resume`](Self::resume). If no answer says whether the progress is saved, the outcome is
    /// [`Unknown`](CheckpointOutcome::Unknown), and so are the outcomes of later checkpoints until a renewal
    /// shows that the lease is still held. The next change of the message then saves the progress too.
    ///
    /// # Errors
    /// - [`is_lease_lost`](Error::is_lease_lost): stop; another worker may have the message.
    /// - [`Storage`](ErrorKind::Storage): the progress is not saved, and the lease is still held; the next
    ///   change of the message saves it.
    ///
    /// # Cancel safety
    /// If the future is dropped, the checkpoint may or may not be saved; the lease stays intact.
    pub async fn checkpoint<T: Serialize + ?Sized>(&self, progress: &T) -> Result<CheckpointOutcome, Error> {
        save_progress(self.leased_job()?, to_json(progress)?).await
    }

    /// Returns the last value that [`checkpoint`](Self::checkpoint) saved, in this or an earlier delivery;
    /// `None` if there is none.
    ///
    /// # Errors
    /// [`Undecodable`](ErrorKind::Undecodable) if the checkpoint is not a `T`,
    /// [`Storage`](ErrorKind::Storage) if its blob cannot be read.
    pub async fn resume<T: DeserializeOwned>(&self) -> Result<Option<T>, Error> {
        load_saved(self.leased_job()?).await?.progress()
    }

    fn leased_job(&self) -> Result<&LeasedJob, Error> {
        self.leased_job.as_ref().ok_or_else(already_settled)
    }

    fn take(&mut self) -> Result<LeasedJob, Error> {
        self.leased_job.take().ok_or_else(already_settled)
    }
}

type Settling = BoxFuture<'static, Result<(), Error>>;

fn complete(job: LeasedJob) -> Settling {
    Box::pin(async move {
        let complete = async {
            // The next receiver would do the work again.
            job.retry_until(Instant::now() + WITHOUT_END, || end_turn(&job, EndState::Done)).await?;
            job.complete().await.map_err(|error| match error {
                LeaseError::Uncertain(_) => Error::new(
                    ErrorKind::LeaseUncertain,
                    "the answer to the deletion was lost; the message may be delivered again",
                )
                .with_source(error),
                _ => error.into(),
            })
        };
        traced(&job, &Outcome::Completed, complete).await
    })
}

fn release(job: LeasedJob, delay: Duration) -> Settling {
    Box::pin(async move {
        traced(&job, &Outcome::Released(delay), async { job.release_uncounted(delay).await.map(drop) }).await
    })
}

fn retry(job: LeasedJob, delay: Duration, error: String) -> Settling {
    Box::pin(async move {
        traced(&job, &Outcome::Retried(delay), async { job.retry(delay, &error).await.map(drop) }).await
    })
}

fn dead_letter(job: LeasedJob, rejection: Rejection) -> Settling {
    Box::pin(async move {
        let outcome = Outcome::DeadLettered(rejection.reason.clone());
        traced(&job, &outcome, dead_letter_by_hand(&job, rejection)).await
    })
}

/// Settles a delivery, in a span of the tracer if there is one. The span has `outcome` if that succeeds.
async fn traced(
    leased_job: &LeasedJob,
    outcome: &Outcome,
    settling: impl Future<Output = Result<(), Error>>,
) -> Result<(), Error> {
    let mut span = leased_job.settle_span(None);
    let settled = span.run(pin!(settling)).await;
    match &settled {
        Ok(()) => span.end(Some(outcome.as_str()), None),
        Err(error) => span.end(None, Some(error.kind().as_str())),
    }
    settled
}

fn already_settled() -> Error {
    Error::new(
        ErrorKind::LeaseLost,
        "the message was already settled: a delivery is completed, released, failed or dead-lettered once",
    )
}

jobqueue_storage::debug_fields! {
    /// Leaves out the message: it may be confidential.
    Delivery<M> { info }
}

impl<M> Drop for Delivery<M> {
    fn drop(&mut self) {
        if let Some(leased_job) = self.leased_job.take() {
            leased_job.release_uncounted_later();
        }
    }
}
