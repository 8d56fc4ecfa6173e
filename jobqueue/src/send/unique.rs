//! Unique work: sent once in a window of time, however many senders want it.
//!
//! ```text
//!            create if absent              put message              write if unchanged
//! (no record) ───────────────► pending ────────────────► (stored) ─────────────────────► sent ── window ──► (no record)
//!                               │    ▲
//!                               └────┘ sender died: until the window ends, the next one sends under the same id
//! ```
//!
//! The blob of a key decides: of concurrent senders exactly one creates it. The others wait until it contains `sent`.
//! So a send that returns "joined" has joined a stored message.

pub(super) mod cancel;
mod record;
mod records;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use record::{Joined, Record};
use records::{Claimed, Records};
use tokio::time::Instant;

use super::dispatch::dispatch;
#[cfg(feature = "sqlite")]
use super::prepare::Prepared;
use super::prepare::{Draft, Purpose, Render, render_draft};
use super::sent::Sent;
use crate::error::{Error, ErrorKind};
#[cfg(feature = "sqlite")]
use crate::json_blob::ExclusiveBlobs;
use crate::message::QueueMessage;
use crate::queue_core::QueueCore;
use crate::runtime::Runtime;

pub(crate) use records::CONTAINER;
pub(super) use records::SentRecords;

/// The time that a sender has before another may take over. It is longer than a send is retried.
const PENDING: Duration = Duration::from_secs(45);
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
    /// Checks the conditions of unique work: a key, and a window.
    pub(crate) fn unique_for(self, window: Duration, runtime: &Runtime) -> Result<Self, Error> {
        let invalid = |text: &str| Err(Error::new(ErrorKind::Invalid, text));
        if window.is_zero() || window > MAX_WINDOW {
            return invalid("the window of unique work must be longer than 0 and at most 10 years");
        }
        if self.key().is_none() {
            return invalid(
                "unique work needs a key: mark a field with #[message(key)] or give one in the options",
            );
        }
        Ok(self.with_own_id(runtime))
    }
}

/// The parts of a unique send that depend on the type of its message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UniqueKind {
    /// The first name that the type had.
    original: &'static str,
    render: Render,
}

impl UniqueKind {
    pub(crate) fn of<M: QueueMessage>() -> Self {
        Self { original: M::original_kind(), render: render_draft::<M> }
    }

    /// Shows the mistakes of a message before its key is claimed. Stores nothing.
    pub(crate) fn check(self, core: &QueueCore, draft: &Draft) -> Result<(), Error> {
        (self.render)(core, draft.clone(), Purpose::Check).map(drop)
    }
}

/// Sends a draft that [`Draft::unique_for`] has checked, unless another message of its key was sent within the
/// window.
pub(crate) async fn send_unique(
    core: &QueueCore,
    draft: Draft,
    window: Duration,
    kind: UniqueKind,
) -> Result<SendUniqueOutcome, Error> {
    Ok(match send_for(core, draft, window, kind, None).await? {
        Ok(sent) => SendUniqueOutcome::Sent(sent),
        Err(Joined { id, .. }) => SendUniqueOutcome::Joined { id },
    })
}

/// The result of sending a unique child of a batch.
#[derive(Debug)]
pub(crate) enum UniqueChildOutcome {
    Sent(Sent),
    Joined {
        /// True if the job was sent as this child, by an earlier start of the batch.
        is_this_child: bool,
    },
}

/// Sends a unique child of a batch. `child` is its name, which is the same at each start of the batch.
pub(crate) async fn send_unique_child(
    core: &QueueCore,
    draft: Draft,
    window: Duration,
    kind: UniqueKind,
    child: &str,
) -> Result<UniqueChildOutcome, Error> {
    Ok(match send_for(core, draft, window, kind, Some(child)).await? {
        Ok(sent) => UniqueChildOutcome::Sent(sent),
        Err(joined) => UniqueChildOutcome::Joined { is_this_child: joined.child.as_deref() == Some(child) },
    })
}

async fn send_for(
    core: &QueueCore,
    draft: Draft,
    window: Duration,
    kind: UniqueKind,
    child: Option<&str>,
) -> Result<Result<Sent, Joined>, Error> {
    kind.check(core, &draft)?;
    let key: Arc<str> = draft.key().unwrap_or_default().into();
    let records = Records::new(core, kind.original, &key)?;
    let id = draft.id().unwrap_or_default().to_owned();
    let claim = match claim_unique(core, &records, id, window, child).await? {
        Ok(claim) => claim,
        Err(joined) => return Ok(Err(joined)),
    };
    let mut prepared = (kind.render)(core, draft.with_id(&claim.value.id)?, Purpose::One)?;
    let taken_over = claim.value.taken_over;
    if taken_over {
        prepared.mark_copy()?;
        // A canceller may have deleted the former message, and a storage that detects duplicates would drop this one all the same.
        prepared.put.job = None;
    }
    match dispatch(core, prepared).await {
        Ok(mut sent) => {
            sent.unique_key = Some(key);
            if let Some(stored) = &mut sent.stored {
                stored.may_be_duplicated |= taken_over;
            }
            let stored = |record: Record| record.at(sent.position).into_sent(sent.stored.as_ref());
            records.finish(claim, stored).await;
            Ok(Ok(sent))
        }
        Err(error) => {
            // An earlier sender's message may be stored: then the id stays.
            if error.is_rejected() && !taken_over {
                records.give_up(claim).await;
            }
            Err(error)
        }
    }
}

/// Sends unique work in a transaction of the caller's. `send` stores the message in the same transaction.
#[cfg(feature = "sqlite")]
pub(crate) fn send_unique_exclusively<M: QueueMessage>(
    core: &QueueCore,
    draft: Draft,
    window: Duration,
    blobs: &dyn ExclusiveBlobs,
    send: impl FnOnce(Prepared) -> Result<Sent, Error>,
) -> Result<SendUniqueOutcome, Error> {
    let draft = draft.unique_for(window, core.runtime())?;
    let kind = UniqueKind::of::<M>();
    kind.check(core, &draft)?;
    let key: Arc<str> = draft.key().unwrap_or_default().into();
    let records = Records::new(core, kind.original, &key)?;
    let now = core.now();
    let mine = Record::pending(draft.id().unwrap_or_default().to_owned(), core.runtime(), PENDING, window);
    let record = match records.claim_exclusively(blobs, &mine, now)? {
        Ok(record) => record,
        Err(Some(Joined { id, .. })) => return Ok(SendUniqueOutcome::Joined { id }),
        Err(None) => {
            let text = "another sender holds the key of this unique work, and cannot finish while this transaction is \
                        open; roll it back and try again";
            return Err(Error::new(ErrorKind::Conflict, text).with_retryable(true));
        }
    };
    let mut sent = send((kind.render)(core, draft.with_id(&record.id)?, Purpose::One)?)?;
    sent.unique_key = Some(key);
    if let Some(stored) = &mut sent.stored {
        stored.may_be_duplicated |= record.taken_over;
    }
    records.write_exclusively(blobs, record.at(sent.position).into_sent(sent.stored.as_ref()))?;
    Ok(SendUniqueOutcome::Sent(sent))
}

/// Claims the key. Waits while another sender is about to send.
async fn claim_unique(
    core: &QueueCore,
    records: &Records,
    id: String,
    window: Duration,
    child: Option<&str>,
) -> Result<Claimed, Error> {
    let give_up = Instant::now() + PENDING * 2;
    let mut pause = Duration::from_millis(20);
    loop {
        let now = core.now();
        let mine = Record::pending(id.clone(), core.runtime(), PENDING, window);
        let mine = mine.of_child(child);
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
