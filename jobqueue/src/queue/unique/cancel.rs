//! Cancelling unique work by its key.

use super::record::{ClaimState, Record, Records};
use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::queue::typed::Queue;

impl<M: QueueMessage> Queue<M> {
    /// Takes back what [`send_unique`](Self::send_unique) has sent under `key` and nobody has received yet, a delayed job for
    /// instance, from any process. Then the key is free: the next `send_unique` sends.
    ///
    /// True if the job is taken back: it will not run. False if there is nothing to take back: nothing was sent under the key
    /// within its window, somebody has received the job, even if it was put back since, or its sender died before it could
    /// say which message it had stored. A job that is delayed for more than 7 days counts as received after its first hop.
    /// Holds on every storage: the key's record keeps the message's first receipt, which is good until the message is received;
    /// so whoever may read the container `jobqueue-unique` may take such jobs back.
    ///
    /// To reschedule, send again if the answer is true. A process that dies between the two has cancelled.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict), retryable, while somebody is sending or cancelling under the key. What the
    /// storage says; if it does not say whether the message was deleted, the key is held for 45 seconds, and then the
    /// next sender sends under the same id.
    ///
    /// # Cancel safety
    /// As when the storage gives no answer.
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
    /// reminders.send_unique_with(&reminder, DAY * 30, in_five_days).await?;
    ///
    /// // Paid in time:
    /// assert!(reminders.cancel_unique("4711").await?);
    /// assert!(reminders.is_empty().await?);
    /// # Ok(()) }
    /// ```
    pub async fn cancel_unique(&self, key: &str) -> Result<bool, Error> {
        let core = self.core();
        let records = Records::new(core, M::KIND, key)?;
        let now = core.options.clock.now();
        let (claim, stored) = match records.hold(now, super::PENDING).await? {
            ClaimState::Held(claim, stored) => (*claim, stored),
            ClaimState::Nothing => return Ok(false),
            ClaimState::Busy => {
                let text = "somebody is sending or cancelling under this key; try again";
                return Err(Error::new(ErrorKind::Conflict, text).with_retryable(true));
            }
        };
        match core.cancel_message(claim.value.position, &stored).await {
            Ok(true) => {
                records.finish(claim, Record::into_void).await;
                Ok(true)
            }
            Ok(false) => {
                records.finish(claim, |record| record.into_sent(None)).await;
                Ok(false)
            }
            Err(not) => {
                if !not.perhaps {
                    records.finish(claim, |record| record.into_sent(Some(&stored))).await;
                }
                Err(not.error)
            }
        }
    }
}
