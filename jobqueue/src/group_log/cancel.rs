//! Cancels a job that no receiver has leased yet, and removes its entry from the group log.

use std::sync::Arc;

use super::entry::EntryRef;
use super::log::{Abandoned, CANCELLATION_PERIOD, CancelBegun, DeletionOutcome, Millis};
use super::log_blob::LogBlob;
use super::store::GroupLogs;
use crate::error::{Error, ErrorKind};
use crate::storage::{Queues, StoreError, StoreErrorKind};
use crate::undelivered::{StoredMessage, UndeliveredRef, delete_undelivered};

/// The reason why a job was not cancelled.
#[derive(Debug)]
pub(crate) struct CancelError {
    pub(crate) error: Error,
    /// True if the message may be deleted although the cancellation reports an error.
    pub(crate) perhaps: bool,
}

impl CancelError {
    fn of_deletion(error: StoreError) -> Self {
        let (perhaps, retryable) = (error.is_ambiguous(), error.is_retryable());
        if perhaps { Self::unknown(error, retryable) } else { Self { perhaps, error: error.into() } }
    }

    fn unknown(source: impl std::error::Error + Send + Sync + 'static, retryable: bool) -> Self {
        let text = "the outcome of the cancellation is unknown: the job may be cancelled, wait, run or have completed";
        let error = Error::new(ErrorKind::Unknown, text).with_retryable(retryable).with_source(source);
        Self { perhaps: true, error }
    }
}

/// Deletes the message of a job before its first delivery, and the job's entry if it has one. Returns false if the
/// message was received.
///
/// # Errors
/// The outcome is unknown, or the job was not cancelled; [`CancelError::perhaps`] distinguishes the two.
pub(crate) async fn cancel_message(
    logs: &GroupLogs,
    store: &Queues,
    position: Option<EntryRef>,
    stored: &StoredMessage,
) -> Result<bool, CancelError> {
    let cancelled = match position {
        Some(entry) => cancel_in_order(logs, store, entry, stored).await,
        None => delete_undelivered(store, &logs.queue, &logs.runtime, stored)
            .await
            .map_err(CancelError::of_deletion),
    };
    match cancelled {
        Ok(true) if stored.may_be_duplicated => {
            let text = "one copy is cancelled; an answer to the send was lost, and another copy may run";
            Err(CancelError { perhaps: true, error: Error::new(ErrorKind::Unknown, text) })
        }
        cancelled => cancelled,
    }
}

async fn cancel_in_order(
    logs: &GroupLogs,
    store: &Queues,
    entry: EntryRef,
    stored: &StoredMessage,
) -> Result<bool, CancelError> {
    let perhaps = |error| CancelError { error, perhaps: true };
    let untouched = |error| CancelError { error, perhaps: false };
    let now = Millis::from(logs.runtime.now());
    let nonce = logs.runtime.random_u64() >> 11;
    let message = UndeliveredRef::from(stored);
    let begun = logs.change(&entry, move |log| log.begin_cancel(&entry, nonce, &message, now)).await;
    let (copies, may_be_deleted) = match begun {
        Ok(CancelBegun::Marked { copies, may_be_deleted }) => (copies, may_be_deleted),
        Ok(CancelBegun::Cancelled) => return Ok(true),
        Ok(CancelBegun::TooLate) => return Ok(false),
        Ok(CancelBegun::Unknown) => {
            let text = "the job was sent again; it is not cancelled, because its first message may run";
            return Err(perhaps(Error::new(ErrorKind::Unknown, text)));
        }
        Err(error) if error.is_outcome_unknown() || stored.may_be_deleted => {
            let retryable = error.is_retryable();
            return Err(CancelError::unknown(error, retryable));
        }
        Err(error) => return Err(untouched(error)),
    };
    let stored = StoredMessage { may_be_deleted, ..stored.clone() };
    let deleted = match delete_undelivered(store, &logs.queue, &logs.runtime, &stored).await {
        // The mark has expired: the next job of the key may have deleted the message, and completes the cancellation.
        Ok(false) if Millis::from(logs.runtime.now()).0 >= now.after(CANCELLATION_PERIOD) => {
            let text = "the cancellation took too long; the next job of the key may have completed it";
            return Err(perhaps(Error::new(ErrorKind::Unknown, text).with_retryable(true)));
        }
        Ok(deleted) => deleted,
        // The send whose answer was lost may still have stored another copy; only a later delivery can show it.
        Err(error) if error.is_ambiguous() => return Err(CancelError::of_deletion(error)),
        Err(error) => {
            // While the mark stands, the next job of the key may delete the message.
            return Err(
                match logs.change(&entry, move |log| log.end_cancel(&entry, nonce, false, now)).await {
                    Ok(_) => CancelError::of_deletion(error),
                    Err(error) => CancelError::unknown(error, true),
                },
            );
        }
    };
    match logs.change(&entry, move |log| log.end_cancel(&entry, nonce, deleted, now)).await {
        Ok(cancelled) => Ok(cancelled),
        Err(error) if !deleted || !copies => {
            crate::log::debug!(queue = %logs.queue, %error, "the entry of a cancelled message was not removed; the jobs behind it will skip it");
            Ok(deleted)
        }
        Err(error) => Err(perhaps(error)),
    }
}

impl GroupLogs {
    /// Completes a cancellation whose initiator crashed.
    ///
    /// # Errors
    /// The fate of the message is unknown. Try again.
    pub(crate) async fn finish_abandoned(
        &self,
        log: &Arc<LogBlob>,
        abandoned: Abandoned,
        store: &Queues,
    ) -> Result<(), Error> {
        // The log keeps every copy of a cancelled job from running.
        let stored =
            StoredMessage { may_be_deleted: true, may_be_duplicated: false, ..abandoned.message.stored() };
        let outcome = match delete_undelivered(store, &self.queue, &self.runtime, &stored).await {
            Ok(true) => DeletionOutcome::Deleted,
            Ok(false) => DeletionOutcome::NotDeleted,
            // It is deleted, or it runs: Azure answers a stale receipt as if the message were gone.
            Err(e) if e.kind() == StoreErrorKind::MessageNotFound => DeletionOutcome::NotDeleted,
            Err(e) => return Err(e.into()),
        };
        let now = Millis::from(self.runtime.now());
        log.change(move |log| log.finish_abandoned(&abandoned, outcome, now)).await
    }
}
