//! The record of a dead letter that was redriven or purged.
//!
//! A worker that dies between copying a message and deleting it leaves the job in both queues. A redrive or
//! purge that meets the copy first records which letter of this end it handles. The next delivery of the
//! message then deletes the message, and a second letter of the same end counts as a copy. The record stays
//! true whatever happens next: the letter that it names exists, or was handled.

use std::time::SystemTime;

use super::dead_envelope::{DeathOf, dead_envelope};
use super::disposition::Rejection;
use super::durable::{COMPLETED, digest_name, expiry, read, record};
use super::leased_job::LeasedJob;
use crate::envelope::Envelope;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::queue_core::QueueCore;
use crate::storage::{BlobName, MessageId, StoreError, StoreErrorKind, Tries};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LetterClaim {
    /// No letter of this end was claimed before.
    New,
    /// This letter may have been claimed before: by a pass that failed, or without a record.
    Repeated,
    /// Another letter of the same end was claimed; this letter is a copy of it.
    Copy,
}

/// A letter as it is stored in its queue. The time and the text distinguish it from a letter of an earlier
/// queue with the same name.
pub(crate) struct StoredLetter<'l> {
    pub(crate) message: &'l MessageId,
    pub(crate) inserted: SystemTime,
    pub(crate) text: &'l str,
}

/// Claims a dead letter before it is redriven or purged. A letter that another program has written, or that
/// the storage has moved in one step, needs no record.
pub(crate) async fn claim_letter(core: &QueueCore, letter: &Envelope) -> Result<LetterClaim, Error> {
    let (Some(death), Some(note)) = (DeathOf::of(letter), &letter.dead_letter) else {
        return Ok(LetterClaim::Repeated);
    };
    if core.store().powers().dead_letters.is_some() {
        return Ok(LetterClaim::Repeated);
    }
    // Each delivery of the message that stores a letter has a different number.
    let own = format!("{} {}", note.deliveries, note.time);
    let name = name(core, &death)?;
    match record_brief(core, &name, own.clone()).await {
        Ok(true) => Ok(LetterClaim::New),
        Ok(false) => match read(&**core.blobs(), &name).await? {
            Some(claimed) if claimed != own => Ok(LetterClaim::Copy),
            _ => Ok(LetterClaim::Repeated),
        },
        Err(error) if is_refused(&error) => {
            crate::log::warn!(queue = %core.name, error = %chain(&error), "no permission to record that a dead letter is handled; a copy of it may run again");
            Ok(LetterClaim::Repeated)
        }
        Err(error) => Err(error),
    }
}

/// Records that a redrive has put the job of a letter back, before the letter is deleted: if the answer to
/// the deletion is lost, a later redrive must not put the job back again. Without the record, which the
/// storage may refuse, it would.
pub(crate) async fn record_redrive(core: &QueueCore, letter: &StoredLetter<'_>) {
    let recorded = async { record_brief(core, &name_of_redrive(core, letter)?, String::new()).await };
    if let Err(error) = recorded.await {
        crate::log::debug!(queue = %core.name, error = %chain(&error), "it is not recorded that a redrive has put a job back");
    }
}

/// Returns whether a redrive has put the job of the letter back and could not delete the letter.
pub(crate) async fn was_redriven(core: &QueueCore, letter: &StoredLetter<'_>) -> Result<bool, Error> {
    match read(&**core.blobs(), &name_of_redrive(core, letter)?).await {
        Err(error) if is_refused(&error) => Ok(false),
        recorded => Ok(recorded?.is_some()),
    }
}

/// Creates a record in a few tries. Returns false if it already exists.
async fn record_brief(core: &QueueCore, name: &BlobName, text: String) -> Result<bool, Error> {
    record(core, name, text, expiry(core.now(), None), Tries::brief(core.runtime(), 1, 2)).await
}

fn name_of_redrive(core: &QueueCore, letter: &StoredLetter<'_>) -> Result<BlobName, Error> {
    let inserted = letter.inserted.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_millis();
    let (message, inserted) = (letter.message.to_string(), inserted.to_string());
    digest_name(COMPLETED, ["put back", core.name.as_str(), &message, &inserted, letter.text])
}

/// Returns whether a message that is about to be dead-lettered without a run already has a letter that was
/// redriven or purged.
pub(super) async fn is_letter_claimed(job: &LeasedJob, rejection: &Rejection) -> Result<bool, Error> {
    let core = &job.core;
    if rejection.attempted || job.dequeue_count <= 1 || core.store().powers().dead_letters.is_some() {
        return Ok(false);
    }
    let Some(death) = DeathOf::of(&dead_envelope(job, rejection, 0)?) else { return Ok(false) };
    match read(&**core.blobs(), &name(core, &death)?).await {
        Err(error) if is_refused(&error) => Ok(false),
        claimed => Ok(claimed?.is_some()),
    }
}

fn name(core: &QueueCore, death: &DeathOf) -> Result<BlobName, Error> {
    digest_name(COMPLETED, ["letter", core.name.as_str(), &death.event.to_string(), &death.message])
}

/// Returns whether the storage refuses the call permanently. A program without permission for blobs works
/// without these records.
fn is_refused(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<StoreError>());
    error.kind() == ErrorKind::Storage
        && source.is_some_and(|source| source.kind() == StoreErrorKind::Unauthorized)
}
