//! Cancels unique work by its key.

use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::queue_core::{Queue, QueueCore};
use crate::send::cancel::cancel_stored;
use crate::send::sent::Sent;
use crate::send::unique::record::{CancellerClaim, UniqueRecord};
use crate::send::unique::records::UniqueRecordBlob;
use crate::send::unique::wait::KeyWait;

impl<M: QueueMessage> Queue<M> {
    /// Cancels the job that a [unique send](crate::queue::SendRequest::unique_for) has sent under `key`, for
    /// instance a delayed job, if no worker has received it yet. Any process can cancel it. The key is then
    /// free: the next unique send stores its message.
    ///
    /// Returns true if the job is cancelled: it will not run. Returns false if there is nothing to cancel:
    ///
    /// - nothing was sent under the key within its window, or it was cancelled before; for this call a window
    ///   ends five minutes later, because clocks may differ;
    /// - a worker has received the job, even if it was put back since; a job that is delayed for more than 7
    ///   days counts as received after its first hop;
    /// - its sender died before it recorded which message it had stored;
    /// - on [Service Bus](crate::guide::service_bus), the job was sent without a delay, or its delay is over:
    ///   the service cannot cancel it then, and the job runs.
    ///
    /// The rest applies on every storage: the key's record keeps the message's first receipt, which is valid
    /// until the message is received. Therefore any program that may read the container `jobqueue-unique` can
    /// cancel such jobs.
    ///
    /// To reschedule a job, cancel it and send it again, whatever the cancellation has returned: the send
    /// joins the job if a worker has received it. If the process dies between the two calls, the job is
    /// cancelled; repeating both calls sends it.
    ///
    /// # Repetition
    /// A cancellation that fails with [`Unknown`](ErrorKind::Unknown), or whose process dies, may have
    /// deleted the message. It holds the key, and another call waits for 45 seconds for it. A call with a
    /// shorter timeout around it gets the key six minutes later. Any process can repeat the cancellation:
    ///
    /// - If the message exists and no worker has received it, the repetition deletes it and returns true.
    /// - If the message exists and a worker has received it, the repetition returns false. Azure Storage and
    ///   Service Bus cannot tell such a message from a deleted one: there it counts as missing. So does, on
    ///   Service Bus, one without a delay, or whose delay is over.
    /// - If the message is missing, and the job's delay has at least five minutes to go, the earlier
    ///   cancellation has deleted it: the repetition returns true. For this the clocks of the job's sender
    ///   and of this process must agree within five minutes. The repetition also returns true if an operator
    ///   has made the job due before its time and it has completed.
    /// - If the message is missing, and the delay is over, the job is cancelled or has run: the repetition
    ///   fails with `Unknown`, and is not retryable.
    ///
    /// If an answer to the send was lost, the repetition fails with `Unknown` instead of returning true.
    /// Until a repetition returns true or false, no send joins the job: the next send stores a message under
    /// the same id.
    ///
    /// # Messages of earlier windows
    /// The key's record names the message of the last window. Jobs of earlier windows that still wait run.
    /// If the window before had a job of the same id and source, the call fails with `Unknown` instead of
    /// returning true, because the message of that window may run. No record remains of windows before, nor
    /// of a window that is over for a day when a sweep runs.
    ///
    /// # Errors
    /// - [`Conflict`](ErrorKind::Conflict), retryable: after a wait of 90 seconds, other processes are still
    ///   sending or cancelling under the key.
    /// - [`Unknown`](ErrorKind::Unknown): an answer to this cancellation or to an earlier one was lost, and
    ///   the message may be deleted or not; or an answer to the send was lost, and another message of the job
    ///   may exist. See [Repetition](#repetition). Or the message is deleted, and the window before had a job
    ///   of the same id: [Messages of earlier windows](#messages-of-earlier-windows).
    /// - [`Storage`](ErrorKind::Storage): the storage failed, and this call cancelled nothing.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be deleted. See [Repetition](#repetition).
    ///
    /// # Examples
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use jobqueue::{QueueMessage, SendOptions, Storage}; use serde::{Deserialize, Serialize}; use std::time::Duration;
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "reminders", kind = "reminder")] struct Reminder { #[message(key)] invoice: String }
    /// # let reminders = Storage::memory().queue::<Reminder>().await?;
    /// const DAY: Duration = Duration::from_secs(86_400);
    /// let reminder = Reminder { invoice: "4711".into() };
    /// let in_five_days = SendOptions::new().delay(DAY * 5);
    /// reminders.send(&reminder).unique_for(DAY * 30).with(in_five_days).await?;
    ///
    /// // Paid in time:
    /// assert!(reminders.cancel_unique("4711").await?);
    /// assert!(reminders.is_empty().await?);
    /// # Ok(()) }
    /// ```
    pub async fn cancel_unique(&self, key: &str) -> Result<bool, Error> {
        let cancelled = cancel_unique(self.core(), M::original_kind(), key, None).await?;
        Ok(cancelled == KeyCancellation::Of { is_deleted: true })
    }
}

/// The result of cancelling a job by its key.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::send) enum KeyCancellation {
    /// The job's message is deleted, or a worker has received it.
    Of { is_deleted: bool },
    /// The key has no such job.
    Nothing,
    /// The key has the job, but another message of it, or none that is known; nothing is cancelled.
    OtherMessage,
}

/// Cancels the job that was sent under `key`, and frees the key. If `sent` is given, cancels only the message
/// of that send.
pub(in crate::send) async fn cancel_unique(
    core: &QueueCore,
    original_kind: &str,
    key: &str,
    sent: Option<&Sent>,
) -> Result<KeyCancellation, Error> {
    let record_blob = UniqueRecordBlob::new(core, original_kind, key)?;
    let mut wait = KeyWait::new();
    let (claim, stored) = loop {
        let now = core.now();
        match record_blob.claim_to_cancel(sent, now, |found| wait.is_abandoned(found, now)).await? {
            CancellerClaim::Held(claim, stored) => break (*claim, stored),
            CancellerClaim::Nothing => return Ok(KeyCancellation::Nothing),
            CancellerClaim::OtherMessage => return Ok(KeyCancellation::OtherMessage),
            CancellerClaim::Busy(found) => {
                if !wait.pause(found).await {
                    let text = "another process is sending or cancelling under this key; try again";
                    return Err(Error::new(ErrorKind::Conflict, text).with_retryable(true));
                }
            }
        }
    };
    let cancelled = cancel_stored(core, claim.record.value.position, &stored).await;
    match cancelled.answer {
        Ok(true) => {
            record_blob.finish(claim, UniqueRecord::into_free).await;
            Ok(KeyCancellation::Of { is_deleted: true })
        }
        Ok(false) => {
            if record_blob.finish(claim, |record| record.into_sent(None)).await == Some(false) {
                let text = "another process has taken the cancellation over, and may have deleted the message; try again";
                return Err(Error::new(ErrorKind::Unknown, text).with_retryable(true));
            }
            Ok(KeyCancellation::Of { is_deleted: false })
        }
        Err(failed) => {
            let is_certain = cancelled.is_message_deleted && !claim.record.value.taken_over;
            if is_certain {
                // Only the message of the window before is in doubt, and it does not hold the key.
                record_blob.finish(claim, UniqueRecord::into_free).await;
            } else if !failed.may_be_deleted {
                record_blob.finish(claim, |record| record.into_sent(Some(&stored))).await;
            }
            Err(failed.error)
        }
    }
}
