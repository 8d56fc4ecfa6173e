//! Receives messages without a worker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::BoxFuture;
use tokio::time::Instant;

use super::manual_delivery::Delivery;
use crate::clock::WITHOUT_END;
use crate::codec::decode_any_version;
use crate::delivery::{
    DeferOutcome, DeferralCause, Disposition, HandlerOutput, Incoming, Kinds, LeasedJob, NotRun, Rejection,
    dead_letter_by_hand, decode, defer, keep_expected,
};
use crate::envelope::headers::batch::is_of_batch;
use crate::error::Error;
use crate::job::JobInfo;
use crate::job::outcome::chain;
use crate::message::QueueMessage;
use crate::queue_core::{Idle, Queue, QueueCore};

/// The longest pause between two requests of [`Queue::receive`] to an empty queue, on storages that cannot
/// notify.
const MAX_RECEIVE_PAUSE: Duration = Duration::from_secs(2);
/// The put-back of a message whose handler has finished in a worker, which must still record that.
const FINISHED_PUT_BACK: Duration = Duration::from_secs(30);
/// The put-back of a message that another program must take: a message of an unknown kind or a newer version
/// that has waited for long, or an unreadable job of a batch.
const LEFT_TO_OTHERS_PUT_BACK: Duration = Duration::from_secs(300);

impl<M: QueueMessage> Queue<M> {
    /// Waits up to `wait` for a message and leases it. Returns `None` if no message arrived. Dead-letters
    /// unreadable messages that it meets, and puts back messages of other kinds and messages that must not
    /// run yet. Requests for a message that have begun are not cut short: the call takes longer than `wait`
    /// by their time, in an outage by the lease of that message at most. A call whose time is over after it
    /// has put a message back returns `None`, although other messages may be behind that message: in a queue
    /// of several kinds, use a wait of more than zero.
    ///
    /// Use it for work that does not fit a handler. Messages arrive in any order, even if they were sent [in
    /// order](crate::SendOptions::in_order); they give up their positions when they are completed or
    /// dead-lettered. Only a [`Worker`](crate::Worker) counts the children of a [batch](crate::batch::Batch):
    /// a child that is completed by hand leaves its batch waiting. An unreadable job of a batch is put back
    /// for five minutes, repeatedly, until a worker takes it. A job whose handler has finished in a worker
    /// that could not record this yet is left to the workers. Other conditions that keep a worker from
    /// running a job do not apply: a pause of the queue, a request to cancel the job, and the records of
    /// [`durable_completions`](crate::WorkerBuilder::durable_completions).
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the storage fails.
    ///
    /// # Cancel safety
    /// If the future is dropped, a message that it was about to return becomes visible again at once, or when
    /// its lease runs out.
    pub async fn receive(&self, wait: Duration) -> Result<Option<Delivery<M>>, Error> {
        let give_up = Instant::now() + wait.min(WITHOUT_END);
        let mut idle = self.core().idle(MAX_RECEIVE_PAUSE);
        let find = |kind: &str| M::kinds().contains(&kind).then_some((M::VERSION, M::DEFAULTS));
        let kinds = Kinds { of_raw: Some(M::KIND), find: &find, unknown: "it is of another kind" };
        while let Some((leased_job, decoded)) = lease_next(self.core(), give_up, &mut idle, &kinds).await? {
            let unread = match decoded {
                _ if HandlerOutput::is_kept(&leased_job) => Disposition::Release(FINISHED_PUT_BACK),
                Ok(data) => match read_payload::<M>(&leased_job, &data) {
                    Ok((message, info)) => return Ok(Some(Delivery::new(message, info, leased_job))),
                    Err(disposition) => disposition,
                },
                Err(disposition) => *disposition,
            };
            settle_unread(&leased_job, unread).await?;
            if Instant::now() >= give_up {
                break;
            }
        }
        Ok(None)
    }
}

/// A leased message, and its payload or the disposition of a message without one.
type Leased = (LeasedJob, Result<Bytes, NotRun>);

/// Waits until `give_up` for a message, and leases it. Not generic, so that it is compiled once.
fn lease_next<'q>(
    core: &'q Arc<QueueCore>,
    give_up: Instant,
    idle: &'q mut Idle,
    kinds: &'q Kinds<'q>,
) -> BoxFuture<'q, Result<Option<Leased>, Error>> {
    Box::pin(async move {
        loop {
            let settings = core.fresh_settings().await;
            let (received, requested) = core.get(1, &settings).await?;
            let next = received.next_visible_in;
            if let Some(leased) = received.messages.into_iter().next() {
                idle.reset();
                return Ok(Some(decode(core, Incoming { leased, requested, settings }, kinds).await));
            }
            if tokio::time::timeout_at(give_up, idle.pause(next)).await.is_err() {
                return Ok(None);
            }
        }
    })
}

fn read_payload<M: QueueMessage>(leased_job: &LeasedJob, data: &[u8]) -> Result<(M, JobInfo), Disposition> {
    let (version, media_type) = leased_job.payload_form();
    match (decode_any_version::<M>(version, media_type.as_deref(), data), leased_job.info()) {
        (Ok((version, message)), Some(mut info)) => {
            info.version = version;
            leased_job.end_wait();
            keep_expected(leased_job);
            Ok((message, info))
        }
        (Err(error), _) => Err(match DeferralCause::of_undecodable(&error) {
            Some(cause) => Disposition::Defer { cause, detail: chain(&error) },
            None => Disposition::DeadLetter(Rejection::undecodable(&error)),
        }),
        // A text that is not an event has no payload.
        (Ok(_), None) => Err(Disposition::Abandon),
    }
}

/// Settles a message that the application does not receive.
fn settle_unread(leased_job: &LeasedJob, disposition: Disposition) -> BoxFuture<'_, Result<(), Error>> {
    Box::pin(async move {
        match disposition {
            Disposition::DeadLetter(rejection) => dead_letter_unread(leased_job, rejection).await,
            Disposition::Release(wait) => leased_job.release_waiting(wait, None).await.map(drop),
            Disposition::Defer { cause, detail } => leave_to_others(leased_job, cause, &detail).await,
            // Decoding yields no other disposition.
            _ => Ok(()),
        }
    })
}

/// Defers a message until another program can take it, or until it can be read.
async fn leave_to_others(leased_job: &LeasedJob, cause: DeferralCause, detail: &str) -> Result<(), Error> {
    match defer(leased_job, cause, detail, |_| {}).await? {
        DeferOutcome::PutBack(_) => Ok(()),
        // Only workers decide that no program can run a message: one that receives by hand may handle only some
        // of the kinds.
        DeferOutcome::WaitIsOver(_) if cause.is_for_others() => {
            leased_job.release_waiting(LEFT_TO_OTHERS_PUT_BACK, None).await.map(drop)
        }
        DeferOutcome::WaitIsOver(rejection) => dead_letter_unread(leased_job, rejection).await,
    }
}

/// Dead-letters a message that the application does not receive. Leaves a job of a batch to the workers,
/// which record its end for the batch.
async fn dead_letter_unread(leased_job: &LeasedJob, rejection: Rejection) -> Result<(), Error> {
    if leased_job.info().is_some_and(|info| is_of_batch(&info.headers)) {
        crate::log::warn!(queue = %leased_job.core.name, "a job of a batch cannot be read; it is left to the workers");
        return leased_job.release_waiting(LEFT_TO_OTHERS_PUT_BACK, None).await.map(drop);
    }
    dead_letter_by_hand(leased_job, rejection).await
}
