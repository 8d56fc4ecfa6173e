//! Work that is to be sent once in a window of time, however many senders want it.
//!
//! ```text
//!            create if absent              put message              write if unchanged
//! (no record) ───────────────► pending ────────────────► (stored) ─────────────────────► sent ── window ──► (no record)
//!                               │    ▲
//!                               └────┘ sender died: the next one sends under the same id
//! ```
//!
//! A blob a key decides: of many that create it exactly one does. Others wait until it says `sent`, so whoever is told
//! that it joined, joined a message that is stored.

mod cancel;
mod record;
#[cfg(test)]
mod tests;

use std::time::Duration;

use tokio::time::Instant;

use super::queue_core::QueueCore;
use super::send::Sent;
use super::send_options::SendOptions;
use super::typed::Queue;
use crate::entropy;
use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
pub(crate) use record::CONTAINER;
use record::{Claim, Record, Records};

/// The time that a sender has until another may take over: longer than a send is tried.
const PENDING: Duration = Duration::from_secs(45);
/// The longest window.
const MAX_WINDOW: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The result of sending a message once.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendUniqueOutcome {
    /// It was sent.
    Sent(Sent),
    /// One of the same kind and key was sent within the window; this one was not.
    Joined {
        /// The id of the job that was sent earlier.
        id: String,
    },
}

impl SendUniqueOutcome {
    /// The id of the job that does the work, whoever has sent it.
    pub fn id(&self) -> &str {
        match self {
            Self::Sent(sent) => sent.id(),
            Self::Joined { id } => id,
        }
    }

    /// Returns whether this message was sent.
    pub fn is_sent(&self) -> bool {
        matches!(self, Self::Sent(_))
    }
}

impl<M: QueueMessage> Queue<M> {
    /// Sends a message unless one of the same kind and key was sent to this queue within `window`, by any process.
    ///
    /// The window begins when the first message is sent and ends with time alone: that a job is completed or
    /// dead-lettered does not end it; [`cancel_unique`](Self::cancel_unique) does. Clocks of senders should agree to a fraction of it. A sender that dies between claiming
    /// the key and sending delays others by at most 45 seconds; then one of them sends under the same job id. If the
    /// dead sender's message was stored all the same there are two messages of one id, and effects idempotent by id
    /// happen once. One small blob a key is kept, and is used again.
    ///
    /// # Errors
    /// As [`send`](Self::send); also [`Invalid`](ErrorKind::Invalid) when the message has no key or the window is empty, and
    /// [`Conflict`](ErrorKind::Conflict), retryable, when another sender holds the key and does not come to an end.
    ///
    /// # Cancel safety
    /// If the future is dropped, the message may or may not be stored, and the key may be held for up to 45 seconds.
    pub async fn send_unique(&self, message: &M, window: Duration) -> Result<SendUniqueOutcome, Error> {
        self.send_unique_with(message, window, SendOptions::new()).await
    }

    /// The same with options. A key in the options is preferred to the message's own.
    ///
    /// # Errors
    /// As [`send_unique`](Self::send_unique).
    ///
    /// # Cancel safety
    /// As [`send_unique`](Self::send_unique).
    pub async fn send_unique_with(
        &self,
        message: &M,
        window: Duration,
        options: SendOptions,
    ) -> Result<SendUniqueOutcome, Error> {
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, text));
        if window.is_zero() || window > MAX_WINDOW {
            return invalid("the window of unique work must be longer than 0 and at most 10 years");
        }
        let key = options.key.clone().or_else(|| message.key().map(|key| key.into_owned()));
        let Some(key) = key.filter(|key| !key.is_empty()) else {
            return invalid(
                "unique work needs a key: mark a field with #[message(key)] or give one in the options",
            );
        };
        let core = self.core();
        core.fresh_settings().await;
        // Whatever is wrong with the message shows before anything is claimed.
        let id = options.id.clone().unwrap_or_else(|| entropy::uuid_v7().to_string());
        core.prepare(message, options.clone().id(id.clone()))?;

        let records = Records::new(core, M::KIND, &key)?;
        match core.claim_unique(&records, id, window).await? {
            Claim::Joined { id } => Ok(SendUniqueOutcome::Joined { id }),
            Claim::Owned(claim) => {
                let prepared = core.prepare(message, options.id(claim.value.id.clone()))?;
                let taken_over = claim.value.taken_over;
                match core.dispatch(prepared).await {
                    Ok(mut sent) => {
                        if let Some(stored) = &mut sent.stored {
                            stored.perhaps_twice |= taken_over;
                        }
                        let stored =
                            |record: Record| record.at(sent.position).into_sent(sent.stored.as_ref());
                        records.finish(claim, stored).await;
                        Ok(SendUniqueOutcome::Sent(sent))
                    }
                    Err(error) => {
                        // An earlier sender's message may be stored all the same: then the id stays.
                        if error.is_rejected() && !taken_over {
                            records.finish(claim, Record::into_void).await;
                        }
                        Err(error)
                    }
                }
            }
        }
    }
}

impl QueueCore {
    /// Claims the key, waiting while another sender is about to send.
    async fn claim_unique(&self, records: &Records, id: String, window: Duration) -> Result<Claim, Error> {
        let give_up = Instant::now() + PENDING * 2;
        let mut pause = Duration::from_millis(20);
        loop {
            let now = self.options.clock.now();
            let mine = Record::pending(id.clone(), now, PENDING, window);
            if let Some(claim) = records.claim(mine, now).await? {
                return Ok(claim);
            }
            if Instant::now() >= give_up {
                let text = "another sender holds the key of this unique work; try again later";
                return Err(Error::new(ErrorKind::Conflict, text).with_retryable(true));
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_secs(1));
        }
    }
}
