//! Cancels a job that no receiver has leased yet, and removes its entry from the group log.

use std::sync::Arc;

use super::entry::EntryRef;
use super::log::{Abandoned, CancelBegun, CancelEnd, GroupLog};
use super::log_blob::LogBlob;
use super::store::GroupLogs;
use crate::envelope::StoredReference;
use crate::error::{Error, ErrorKind};
use crate::storage::{Queues, StoreError, StoreErrorKind};
use crate::undelivered::{StoredMessage, UndeliveredRef, delete_undelivered};

/// The result of cancelling a job through one of its messages.
#[derive(Debug)]
pub(crate) struct Cancellation {
    /// True if the job is cancelled, false if a worker received the message.
    pub(crate) answer: Result<bool, CancelError>,
    /// True if this message is certainly deleted, so that nothing needs its payload.
    pub(crate) is_message_deleted: bool,
}

/// The reason why a job was not cancelled.
#[derive(Debug)]
pub(crate) struct CancelError {
    pub(crate) error: Error,
    /// True if the message may be deleted although the cancellation reports an error.
    pub(crate) may_be_deleted: bool,
}

impl CancelError {
    fn of_deletion(error: StoreError) -> Self {
        let (may_be_deleted, retryable) = (error.is_ambiguous(), error.is_retryable());
        if may_be_deleted {
            Self::unknown(retryable).with_source(error)
        } else {
            Self { may_be_deleted, error: error.into() }
        }
    }

    fn unknown(retryable: bool) -> Self {
        let text = "the outcome of the cancellation is unknown: the job may be cancelled, wait, run or have completed";
        Self { may_be_deleted: true, error: Error::new(ErrorKind::Unknown, text).with_retryable(retryable) }
    }

    fn with_source(self, source: impl std::error::Error + Send + Sync + 'static) -> Self {
        Self { error: self.error.with_source(source), ..self }
    }

    fn of_copies() -> Self {
        let text = "one message of the job is cancelled; an answer to its send was lost, or it was sent again, and another message may run";
        Self { may_be_deleted: true, error: Error::new(ErrorKind::Unknown, text) }
    }
}

/// Deletes the message of a job before its first delivery, and the job's entry if it has one.
pub(crate) async fn cancel_message(
    logs: &GroupLogs,
    store: &Queues,
    position: Option<EntryRef>,
    stored: &StoredMessage,
) -> Cancellation {
    let mut cancelled = match position {
        Some(entry) => cancel_in_order(logs, store, entry, stored).await,
        None => {
            let deleted = delete_undelivered(store, &logs.queue, &logs.runtime, stored).await;
            let is_message_deleted = matches!(deleted, Ok(true));
            Cancellation { answer: deleted.map_err(CancelError::of_deletion), is_message_deleted }
        }
    };
    if stored.may_be_duplicated && matches!(cancelled.answer, Ok(true)) {
        cancelled.answer = Err(CancelError::of_copies());
    }
    cancelled
}

async fn cancel_in_order(
    logs: &GroupLogs,
    store: &Queues,
    entry: EntryRef,
    stored: &StoredMessage,
) -> Cancellation {
    let not_deleted = |answer| Cancellation { answer, is_message_deleted: false };
    let nonce = logs.runtime.random_u64() >> 11;
    let message = UndeliveredRef::from(stored);
    let begun = match logs.clock.certain_now().await {
        Ok(now) => logs.change(&entry, move |log| log.begin_cancel(&entry, nonce, &message, now)).await,
        Err(error) => Err(error),
    };
    let (copies, may_be_deleted) = match begun {
        Ok(CancelBegun::Marked { copies, may_be_deleted }) => (copies, may_be_deleted),
        Ok(CancelBegun::Cancelled) => {
            // The job may have been cancelled through another message; if this one is not deleted now, the
            // log discards it.
            let stored = StoredMessage { may_be_deleted: true, ..stored.clone() };
            let deleted = delete_undelivered(store, &logs.queue, &logs.runtime, &stored).await;
            return Cancellation { answer: Ok(true), is_message_deleted: matches!(deleted, Ok(true)) };
        }
        Ok(CancelBegun::TooLate) => return not_deleted(Ok(false)),
        Ok(CancelBegun::Unknown) => {
            let text = "the job was sent again; it is not cancelled, because its first message may run";
            let error = Error::new(ErrorKind::Unknown, text);
            return not_deleted(Err(CancelError { error, may_be_deleted: stored.may_be_deleted }));
        }
        Err(error) if error.is_outcome_unknown() || stored.may_be_deleted => {
            return not_deleted(Err(CancelError::unknown(error.is_retryable()).with_source(error)));
        }
        Err(error) => return not_deleted(Err(CancelError { error, may_be_deleted: false })),
    };
    let stored = StoredMessage { may_be_deleted, ..stored.clone() };
    let deletion = delete_undelivered(store, &logs.queue, &logs.runtime, &stored).await;
    let is_message_deleted = matches!(deletion, Ok(true));
    let answer = match deletion {
        // The mark stays: the next job of the key completes the cancellation.
        Err(error) if error.is_ambiguous() => Err(CancelError::of_deletion(error)),
        deletion => {
            let now = logs.clock.now().await;
            let end = move |log: &mut GroupLog| log.end_cancel(&entry, nonce, is_message_deleted, now);
            answer(logs, logs.change(&entry, end).await, deletion, copies)
        }
    };
    Cancellation { answer, is_message_deleted }
}

/// Returns the answer of a cancellation whose deletion has a certain result.
fn answer(
    logs: &GroupLogs,
    end: Result<CancelEnd, Error>,
    deletion: Result<bool, StoreError>,
    copies: bool,
) -> Result<bool, CancelError> {
    match (end, deletion) {
        (Ok(CancelEnd::Cancelled), _) if copies => Err(CancelError::of_copies()),
        (Ok(CancelEnd::Cancelled), _) => Ok(true),
        (Ok(CancelEnd::TooLate), Ok(_)) => Ok(false),
        (Ok(CancelEnd::TooLate), Err(error)) => Err(CancelError::of_deletion(error)),
        (Ok(CancelEnd::Unknown), _) => Err(CancelError::unknown(true)),
        (Err(error), Ok(true)) if !copies => {
            crate::log::debug!(queue = %logs.queue, %error, "the entry of a cancelled message was not removed; the jobs behind it will skip it");
            Ok(true)
        }
        // While the mark stays, the next job of the key may delete the message, or has deleted it.
        (Err(error), _) => Err(CancelError::unknown(true).with_source(error)),
    }
}

impl GroupLogs {
    /// Completes a cancellation whose canceller crashed or takes too long, unless another delivery completes
    /// it. Calls `remove` with the payload of the message if the message is deleted: before the end is
    /// recorded, because a later completion may not be certain of the deletion.
    ///
    /// # Errors
    /// It is unknown whether the message is deleted. Try again when the cancellation is abandoned once more.
    pub(crate) async fn finish_abandoned<F: Future<Output = ()>>(
        &self,
        log: &Arc<LogBlob>,
        abandoned: Abandoned,
        store: &Queues,
        remove: impl FnOnce(StoredReference) -> F,
    ) -> Result<(), Error> {
        let nonce = self.runtime.random_u64() >> 11;
        let (entry, now) = (abandoned.entry, self.clock.now().await);
        // The log keeps every copy of a cancelled job from running.
        let stored =
            StoredMessage { may_be_deleted: true, may_be_duplicated: false, ..abandoned.message.stored() };
        if !log.change(move |log| log.take_over_cancel(&abandoned, nonce, now)).await? {
            return Ok(());
        }
        let deleted = match delete_undelivered(store, &self.queue, &self.runtime, &stored).await {
            // The message is deleted, or it runs: Azure answers a stale receipt as if the message were gone.
            Err(e) if e.kind() == StoreErrorKind::MessageNotFound => false,
            deleted => deleted?,
        };
        if let Some(payload) = stored.payload.filter(|_| deleted) {
            remove(*payload).await;
        }
        let now = self.clock.now().await;
        log.change(move |log| log.end_cancel(&entry, nonce, deleted, now)).await.map(drop)
    }
}
