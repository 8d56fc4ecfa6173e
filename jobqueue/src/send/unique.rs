//! Unique work: sent once in a window of time, however many senders try.
//!
//! ```text
//!            create if absent          put message          write if unchanged
//! (no record) ───────────────► pending ────────────► (stored) ─────────────────► sent ── window ──► (no record)
//!                               │    ▲
//!                               └────┘ sender died: until the window ends, the next one sends the same job
//! ```
//!
//! The blob of a key decides: of concurrent senders exactly one creates it. The others wait until it contains
//! `sent`. So a send that returns "joined" has joined a stored message. A sender puts its message only while
//! it holds the key, which it renews during a long upload. Another sender or canceller takes the key over
//! once it has seen the record unchanged for the length of a hold, by its own monotonic clock. The record's
//! own timestamp is trusted only once it is older than the allowed clock skew.

pub(super) mod cancel;
pub(super) mod key_hold;
mod record;
mod records;
#[cfg(test)]
mod tests;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use key_hold::KeyHold;
use record::{KeyClaim, UniqueRecord};
use records::{SenderClaim, UniqueRecordBlob};
use wait::KeyWait;

use super::dispatch::dispatch_held;
use super::prepare::{Draft, Purpose, Render, render_draft};
use super::sent::{Sent, UniqueRef};
use crate::clock::unix_millis;
use crate::error::{Error, ErrorKind};
use crate::message::QueueMessage;
use crate::queue_core::QueueCore;
use crate::runtime::Runtime;

pub(crate) use records::CONTAINER;
pub(super) use records::SentRecords;

const MAX_WINDOW: Duration = Duration::from_secs(10 * 366 * 86_400);

/// The result of sending unique work.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendUniqueOutcome {
    /// The message was sent.
    Sent(Sent),
    /// A message of the same kind and key was sent within the window; this one was not.
    #[non_exhaustive]
    Joined {
        /// The id of the job that was sent earlier.
        id: String,
    },
}

impl SendUniqueOutcome {
    /// Returns the id of the job that does the work: this job or the one sent earlier.
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

impl Draft {
    /// Checks the conditions of unique work, a key and a valid window, and gives the job its own id.
    pub(super) fn unique_for(self, window: Duration, runtime: &Runtime) -> Result<Self, Error> {
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, text));
        if window.is_zero() || window > MAX_WINDOW {
            return invalid("the window of unique work must be longer than 0 and at most 10 years");
        }
        if self.key().is_none() {
            return invalid(
                "unique work needs a key, and this message has none or an empty one: mark a field with #[message(key)] or set one in the options",
            );
        }
        Ok(self.with_own_id(runtime))
    }
}

/// The parts of a unique send that depend on the type of its message.
#[derive(Debug, Clone, Copy)]
pub(super) struct UniqueKind {
    /// The original kind of the message type, before any renaming.
    original: &'static str,
    render: Render,
}

impl UniqueKind {
    pub(super) fn of<M: QueueMessage>() -> Self {
        Self { original: M::original_kind(), render: render_draft::<M> }
    }
}

/// Sends a draft that [`Draft::unique_for`] has checked, unless another message of its key was sent within
/// the window.
pub(super) async fn send_unique(
    core: &QueueCore,
    draft: Draft,
    window: Duration,
    kind: UniqueKind,
) -> Result<SendUniqueOutcome, Error> {
    // Reports an invalid message before its key is claimed.
    (kind.render)(core, draft.clone(), Purpose::Check)?;
    let key: Arc<str> = draft.key().unwrap_or_default().into();
    let record_blob = UniqueRecordBlob::new(core, kind.original, &key)?;
    let claim = match claim_unique(core, &record_blob, &draft, window).await? {
        Ok(claim) => claim,
        Err(id) => return Ok(SendUniqueOutcome::Joined { id }),
    };
    let record = &claim.record.value;
    let source: Arc<str> = record.source.as_str().into();
    let mut prepared = (kind.render)(core, draft.with_identity(&record.id, &source)?, Purpose::One)?;
    let taken_over = record.taken_over;
    if taken_over {
        // A canceller may have deleted the former message, but a storage that detects duplicates would still
        // drop this one.
        prepared.put.job = None;
    }
    let mut held = KeyHold { record_blob: &record_blob, claim };
    let mut sent = dispatch_held(core, prepared, Some(&mut held)).await;
    if let Ok(sent) = &mut sent {
        sent.unique = Some(Box::new(UniqueRef { key, source }));
    }
    let KeyHold { claim, .. } = held;
    // Counts from when the message is stored: the upload or the put may have taken longer than the window.
    let window_end = || unix_millis(core.now() + window);
    let sent = record_outcome(&record_blob, claim, sent, taken_over, window_end).await?;
    Ok(SendUniqueOutcome::Sent(sent))
}

/// Records the outcome of a send in the record of its key, and returns the outcome.
async fn record_outcome(
    record_blob: &UniqueRecordBlob,
    claim: KeyClaim,
    sent: Result<Sent, Error>,
    taken_over: bool,
    window_end: impl Fn() -> u64,
) -> Result<Sent, Error> {
    let may_be_duplicated = claim.record.value.may_be_duplicated();
    let mut sent = match sent {
        Ok(sent) => sent,
        Err(error) => {
            // After a takeover an earlier sender's message may be stored: then the id stays.
            if error.is_rejected() && !taken_over {
                record_blob.give_up(claim).await;
            }
            return Err(error);
        }
    };
    if let Some(stored) = &mut sent.stored {
        stored.may_be_duplicated |= may_be_duplicated;
    }
    let stored = |record: UniqueRecord| {
        record.with_position_and_window(sent.position, window_end()).into_sent(sent.stored.as_ref())
    };
    let is_recorded = record_blob.finish(claim, stored).await;
    if let Some(stored) = &mut sent.stored {
        // This process stood still, and another sender has taken the key over; or the next sender will do so,
        // because the record names no message.
        stored.may_be_duplicated |= is_recorded != Some(true);
    }
    Ok(sent)
}

fn pending(core: &QueueCore, draft: &Draft, window: Duration) -> UniqueRecord {
    UniqueRecord::pending(draft.id().unwrap_or_default(), &draft.source(core), core.runtime(), window)
}

/// Claims the key. Waits while another process is sending or cancelling under it. Returns the id of the job
/// if a job was sent.
async fn claim_unique(
    core: &QueueCore,
    record_blob: &UniqueRecordBlob,
    draft: &Draft,
    window: Duration,
) -> Result<Result<KeyClaim, String>, Error> {
    let mut wait = KeyWait::new();
    loop {
        let now = core.now();
        let is_abandoned = |found: &UniqueRecord| wait.is_abandoned(found, now);
        match record_blob.claim(pending(core, draft, window), now, is_abandoned).await? {
            SenderClaim::Mine(claim) => return Ok(Ok(*claim)),
            SenderClaim::Joined(id) => return Ok(Err(id)),
            SenderClaim::Busy(found) => {
                if !wait.pause(found).await {
                    let text = "another sender holds the key of this unique work; try again later";
                    return Err(Error::new(ErrorKind::Conflict, text).with_retryable(true));
                }
            }
        }
    }
}
