//! Cancels sent jobs before their first delivery.

use super::sent::Sent;
use super::unique::cancel::{KeyCancellation, cancel_unique};
use crate::error::Error;
use crate::group_log;
use crate::group_log::{Cancellation, EntryRef};
use crate::message::QueueMessage;
use crate::queue_core::{Queue, QueueCore, remove_blobs};
use crate::undelivered::StoredMessage;

impl<M: QueueMessage> Queue<M> {
    /// Cancels a job whose message no worker has received yet. Returns false if a worker has received the
    /// message, or if the message no longer exists, for instance because the job is cancelled already. For a
    /// job in order by a log, a repeated cancellation returns true while the log remembers the first. On
    /// [Service Bus](crate::guide::service_bus) also returns false if the message was sent without a delay,
    /// or if its delay is over: the service cannot cancel it then, and the job runs.
    ///
    /// A cancelled unique job leaves its key free. Any process can cancel such a job by its key:
    /// [`cancel_unique`](Self::cancel_unique). A job that is sent again after its cancellation needs another
    /// [id](crate::SendOptions::id) where [Service Bus detects duplicates](crate::guide::service_bus), unless
    /// a log keeps its order.
    ///
    /// # Errors
    /// - [`is_outcome_unknown`](Error::is_outcome_unknown): the job may run or not. Either an answer to the
    ///   cancellation was lost, or an answer to the send was lost, so that a second message may be stored, or
    ///   a job [in order](crate::SendOptions::in_order) was sent twice under its id, or the record of a
    ///   unique job does not name this message: it was sent in another window under the same id, or its send
    ///   could not be recorded. Then the message of this send is cancelled, and another one may run. After a
    ///   cancellation without an answer, a repeated cancellation of a unique job, or of a job in order by a
    ///   log, returns the result that [`cancel_unique`](Self::cancel_unique) would. No second message of a
    ///   job in order runs while the log remembers the cancellation, that is, while the job is one of the
    ///   last 256 that have ended there. If the cancellation was not certainly ended, the next job of its key
    ///   completes it.
    /// - [`Conflict`](crate::ErrorKind::Conflict), retryable: another process is sending or cancelling under
    ///   the key of a unique job, and has not ended within 90 seconds.
    /// - [`Storage`](crate::ErrorKind::Storage): the storage failed, and the job is not cancelled.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be deleted. The message of a job in order may
    /// also be deleted later.
    pub async fn cancel(&self, sent: &Sent) -> Result<bool, Error> {
        let Some(stored) = &sent.stored else { return Ok(false) };
        let (core, mut stored) = (self.core(), stored.clone());
        if let Some(unique) = &sent.unique {
            match cancel_unique(core, M::original_kind(), &unique.key, Some(sent)).await? {
                KeyCancellation::Of { is_deleted } => return Ok(is_deleted),
                KeyCancellation::Nothing => {}
                KeyCancellation::OtherMessage => stored.may_be_duplicated = true,
            }
        }
        cancel_stored(core, sent.position, &stored).await.answer.map_err(|not| not.error)
    }
}

/// Deletes a message before its first delivery, then its payload. The answer is false if a worker has
/// received the message.
pub(super) async fn cancel_stored(
    core: &QueueCore,
    position: Option<EntryRef>,
    stored: &StoredMessage,
) -> Cancellation {
    let cancelled = group_log::cancel_message(&core.groups, core.store(), position, stored).await;
    if cancelled.is_message_deleted {
        remove_blobs(core, &core.name, stored.payload.as_deref().cloned().into_iter().collect()).await;
    }
    cancelled
}
