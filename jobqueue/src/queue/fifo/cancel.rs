//! Taking a message back together with its place.
//!
//! Its place is marked first, with what it takes to delete the message. If whoever did that dies, the mark stays, and once its
//! time is over the next of the key does the rest: it deletes the message if nobody has received it, and then the place. So no
//! key waits for a message that is not there.

use super::line::{PendingCancellation, Ticket};
use super::lines::Lines;
use crate::error::{Error, ErrorKind};
use crate::name::QueueName;
use crate::queue::queue_core::QueueCore;
use crate::queue::unreceived::Stored;
use crate::storage::{ExpiredReceipt, QueueStore, StoreError, StoreErrorKind};

/// Why a message was not taken back.
#[derive(Debug)]
pub(in crate::queue) struct CancelError {
    pub(in crate::queue) error: Error,
    /// Whether it may be gone all the same, now or later.
    pub(in crate::queue) perhaps: bool,
}

impl CancelError {
    fn of_deletion(error: StoreError) -> Self {
        if !error.is_ambiguous() {
            return Self { perhaps: false, error: error.into() };
        }
        let retryable = error.is_retryable();
        let text = "whether the job is cancelled is unknown: it may run or be done; try again";
        let error = Error::new(ErrorKind::Unknown, text).with_retryable(retryable).with_source(error);
        Self { perhaps: true, error }
    }
}

impl QueueCore {
    /// Takes back a message of `job` that nobody has received, and its place if it keeps to the order of `in_order`. False if
    /// somebody has received it.
    pub(in crate::queue) async fn cancel_message(
        &self,
        in_order: Option<&str>,
        job: &str,
        stored: &Stored,
    ) -> Result<bool, CancelError> {
        let message = &stored.message;
        let lines = self.lines();
        let ticket =
            in_order.map(|key| Ticket { key, job, message: message.id.as_str(), delivery: u32::MAX });
        if let Some(ticket) = &ticket {
            let marked = lines.begin_cancellation(ticket, message, self.options.clock.now()).await;
            marked.map_err(|error| CancelError { error, perhaps: true })?;
        }
        let deleted = self.delete_unreceived(stored).await;
        if let Some(ticket) = &ticket {
            let tidied = match &deleted {
                Ok(true) => lines.leave(ticket).await.map(drop),
                // Whether it is there is for the next of the key to find out.
                Err(error) if error.is_ambiguous() => Ok(()),
                Ok(false) | Err(_) => lines.keep(ticket).await,
            };
            if let Err(error) = tidied {
                tracing::debug!(queue = %self.name, %error, "a place is left to the next of its key to tidy up");
            }
        }
        match deleted {
            Ok(true) if stored.perhaps_twice => {
                let text = "one copy is cancelled; an answer to the send was lost, and another may run";
                Err(CancelError { perhaps: true, error: Error::new(ErrorKind::Unknown, text) })
            }
            Ok(deleted) => Ok(deleted),
            Err(error) => Err(CancelError::of_deletion(error)),
        }
    }
}

/// Does the rest of what somebody has begun who died.
///
/// # Errors
/// What the storage says; to be tried again.
pub(crate) async fn finish_cancellation(
    lines: Lines<'_>,
    store: &dyn QueueStore,
    queue: &QueueName,
    key: &str,
    pending: &PendingCancellation,
) -> Result<(), Error> {
    let ticket = pending.ticket(key);
    match store.delete(queue, &pending.message, ExpiredReceipt::Allow).await {
        Ok(()) => {}
        Err(e) if e.kind() == StoreErrorKind::MessageNotFound => {}
        // Somebody has received it: it has its turn as others have.
        Err(e) if e.is_lease_lost() => return lines.keep(&ticket).await,
        Err(e) => return Err(e.into()),
    }
    lines.leave(&ticket).await.map(drop)
}
