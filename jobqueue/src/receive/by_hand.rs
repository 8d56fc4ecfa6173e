//! Receives messages without a worker.

use std::marker::PhantomData;
use std::time::Duration;

use tokio::time::Instant;

use super::manual_delivery::Delivery;
use crate::clock::WITHOUT_END;
use crate::codec::decode_any_version;
use crate::delivery::{
    Cause, Disposition, Incoming, Kinds, LeasedJob, Rejection, dead_letter_by_hand, decode, defer,
    keep_expected,
};
use crate::error::Error;
use crate::job::outcome::chain;
use crate::message::{MessageDefaults, QueueMessage};
use crate::queue_core::Queue;

/// The longest pause between two requests of [`Queue::receive`] to an empty queue, on storages that cannot notify.
const MAX_RECEIVE_PAUSE: Duration = Duration::from_secs(2);
/// The put-back of a message that no program knows, once it has waited for long.
const NOT_MINE: Duration = Duration::from_secs(300);

impl<M: QueueMessage> Queue<M> {
    /// Waits up to `wait` for a message and leases it. Returns `None` if none arrived. Dead-letters unreadable
    /// messages that it meets.
    ///
    /// Use it for work that does not fit a handler. Messages arrive in any order, even if they were sent [in
    /// order](crate::SendOptions::in_order); they give up their positions when they are completed or dead-lettered.
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
        let mut idle = self.core().idle(MAX_RECEIVE_PAUSE);
        loop {
            let settings = self.core().fresh_settings().await;
            let (received, requested) = self.core().get(1, &settings).await?;
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
        let (leased_job, decoded) = decode(self.core(), incoming, &KindsOf::<M>(PhantomData)).await;
        match decoded.map_err(|disposition| *disposition) {
            Ok(data) => return self.read_payload(leased_job, &data).await,
            Err(Disposition::DeadLetter(rejection)) => dead_letter_by_hand(&leased_job, rejection).await?,
            Err(Disposition::Release(wait)) => leased_job.release_uncounted(wait).await?,
            Err(Disposition::Defer { cause, detail }) => self.leave(&leased_job, cause, &detail).await?,
            // Decoding decides nothing else.
            Err(_) => {}
        }
        Ok(None)
    }

    async fn read_payload(&self, leased_job: LeasedJob, data: &[u8]) -> Result<Option<Delivery<M>>, Error> {
        let form = leased_job.with_envelope(|event| (event.version, event.media_type()));
        let (version, media_type) = form.unwrap_or_default();
        match (decode_any_version::<M>(version, media_type.as_deref(), data), leased_job.info()) {
            (Ok((version, message)), Some(mut info)) => {
                info.version = version;
                leased_job.end_wait();
                keep_expected(&leased_job);
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
            Ok(_) => Ok(()),
            // Only workers decide that a message has no handler: a program that receives by hand may handle one kind
            // of many.
            Err(_) if matches!(cause, Cause::UnknownKind | Cause::NewerVersion) => {
                leased_job.release_uncounted(NOT_MINE).await
            }
            Err(rejection) => dead_letter_by_hand(leased_job, rejection).await,
        }
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

    fn defaults(&self, _: &str) -> MessageDefaults {
        M::DEFAULTS
    }

    fn unknown(&self) -> &'static str {
        "it is of another kind"
    }
}
