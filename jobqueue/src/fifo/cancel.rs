//! Cancels a FIFO job that no receiver has leased yet, and removes its entry from the group log.

use super::entry::EntryRef;
use super::log::{Abandoned, CancelBegun, Fate, Millis};
use super::store::LogBlob;
use crate::entropy;
use crate::error::{Error, ErrorKind};
use crate::queue::{QueueCore, Stored, Unreceived, delete_unreceived};
use crate::storage::{ExpiredReceipt, StoreError, StoreErrorKind};

/// The reason why a job was not cancelled.
#[derive(Debug)]
pub(crate) struct CancelError {
    pub(crate) error: Error,
    /// True if the message may be deleted although the cancellation reports an error.
    pub(crate) perhaps: bool,
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

/// Deletes the message of a job that nobody has received, and the job's entry if it has one.
///
/// Returns false if somebody has received the message.
///
/// # Errors
/// The outcome is unknown, or the job was not cancelled; [`CancelError::perhaps`] tells the two apart.
pub(crate) async fn cancel_message(
    core: &QueueCore,
    position: Option<EntryRef>,
    stored: &Stored,
) -> Result<bool, CancelError> {
    let cancelled = match position {
        Some(entry) => cancel_in_order(core, entry, stored).await,
        None => delete_unreceived(core, stored).await.map_err(CancelError::of_deletion),
    };
    match cancelled {
        Ok(true) if stored.perhaps_twice => {
            let text = "one copy is cancelled; an answer to the send was lost, and another may run";
            Err(CancelError { perhaps: true, error: Error::new(ErrorKind::Unknown, text) })
        }
        cancelled => cancelled,
    }
}

async fn cancel_in_order(core: &QueueCore, entry: EntryRef, stored: &Stored) -> Result<bool, CancelError> {
    let perhaps = |error| CancelError { error, perhaps: true };
    let untouched = |error| CancelError { error, perhaps: false };
    let now = Millis::from(core.options.clock.now());
    let nonce = entropy::random::<u64>() >> 11;
    let log = core.fifo.of(&entry).map_err(|error| untouched(error.into()))?;
    let message = Unreceived::from(stored);
    let copies = match log.change(move |log| log.begin_cancel(&entry, nonce, &message, now)).await {
        Ok(CancelBegun::Marked { copies }) => copies,
        Ok(CancelBegun::TooLate) => return Ok(false),
        Err(error) => return Err(untouched(error)),
    };
    let deleted = match delete_unreceived(core, stored).await {
        Ok(deleted) => deleted,
        // The send whose answer was lost may still have stored another copy; only a later delivery can show it.
        Err(error) if error.is_ambiguous() => return Err(CancelError::of_deletion(error)),
        Err(error) => {
            drop(log.change(move |log| log.end_cancel(&entry, nonce, false, now)).await);
            return Err(CancelError::of_deletion(error));
        }
    };
    match log.change(move |log| log.end_cancel(&entry, nonce, deleted, now)).await {
        Ok(cancelled) => Ok(cancelled),
        Err(error) if !deleted || !copies => {
            tracing::debug!(queue = %core.name, %error, "the entry of a cancelled message was not removed; the jobs behind it will skip it");
            Ok(deleted)
        }
        Err(error) => Err(perhaps(error)),
    }
}

/// Completes a cancellation whose initiator crashed.
///
/// # Errors
/// The storage did not say what became of the message. Try again.
pub(super) async fn finish_abandoned(
    core: &QueueCore,
    log: &std::sync::Arc<LogBlob>,
    abandoned: Abandoned,
) -> Result<(), Error> {
    let message = abandoned.message.message();
    let fate = match core.store().delete(&core.name, &message, ExpiredReceipt::Allow).await {
        Ok(()) => Fate::Deleted,
        // The message was deleted before, is leased on a storage that does not tell the two apart, or has another
        // id here.
        Err(e) if e.kind() == StoreErrorKind::MessageNotFound => Fate::Unknown,
        Err(e) if e.is_lease_lost() => Fate::Received,
        Err(e) => return Err(e.into()),
    };
    let now = Millis::from(core.options.clock.now());
    log.change(move |log| log.finish_abandoned(&abandoned, fate, now)).await
}
