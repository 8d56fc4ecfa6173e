//! Cancels unique work by its key.

use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::queue_core::{Queue, QueueCore};
use crate::send::cancel::cancel_stored;
use crate::send::unique::record::{ClaimState, Record};
use crate::send::unique::records::Records;

impl<M: QueueMessage> Queue<M> {
    /// Cancels the job that a [unique send](crate::queue::SendRequest::unique_for) has sent under `key`, for instance a
    /// delayed job, if no worker has received it yet. Any process can do so. The key is then free: the next unique send
    /// stores its message.
    ///
    /// Returns true if the job is cancelled: it will not run. Returns false if there is nothing to cancel:
    ///
    /// - nothing was sent under the key within its window;
    /// - a worker has received the job, even if it was put back since; a job that is delayed for more than 7 days
    ///   counts as received after its first hop;
    /// - its sender died before it recorded which message it had stored.
    ///
    /// This holds on every storage: the key's record keeps the message's first receipt, which is valid until the
    /// message is received. Therefore any program that may read the container `jobqueue-unique` can cancel such jobs.
    ///
    /// To reschedule a job, send it again after this has returned true. A process that dies between the two has
    /// cancelled it.
    ///
    /// # Errors
    /// - [`Conflict`](ErrorKind::Conflict), retryable: another process is sending or cancelling under the key. Not retryable: the
    ///   job is a [child of a batch](crate::batch::Batch::send), which would wait for it forever.
    /// - [`Unknown`](ErrorKind::Unknown): an answer was lost, and the message may be deleted or not. The key is held
    ///   for 45 seconds; then the next sender sends under the same id, and another cancellation can be tried.
    /// - [`Storage`](ErrorKind::Storage): the storage failed, and nothing was cancelled.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be deleted, as after a lost answer.
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
        Ok(cancel_unique(self.core(), M::original_kind(), key, None).await?.unwrap_or(false))
    }
}

/// Cancels the job that was sent under `key`, only that with the `id` if one is given, and frees the key. Returns `None` if the key has no
/// such job.
pub(in crate::send) async fn cancel_unique(
    core: &QueueCore,
    original_kind: &str,
    key: &str,
    id: Option<&str>,
) -> Result<Option<bool>, Error> {
    let records = Records::new(core, original_kind, key)?;
    let (claim, stored) = match records.hold(id, core.now(), super::PENDING).await? {
        ClaimState::Held(claim, stored) => (*claim, stored),
        ClaimState::Nothing => return Ok(None),
        ClaimState::OfBatch => {
            let text = "the job is a child of a batch, which would wait for it forever; it is not cancelled";
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        ClaimState::Busy => {
            let text = "another process is sending or cancelling under this key; try again";
            return Err(Error::new(ErrorKind::Conflict, text).with_retryable(true));
        }
    };
    match cancel_stored(core, claim.value.position, &stored).await {
        Ok(true) => {
            records.finish(claim, Record::into_void).await;
            Ok(Some(true))
        }
        Ok(false) => {
            records.finish(claim, |record| record.into_sent(None)).await;
            Ok(Some(false))
        }
        Err(not) => {
            if !not.perhaps {
                records.finish(claim, |record| record.into_sent(Some(&stored))).await;
            }
            Err(not.error)
        }
    }
}
