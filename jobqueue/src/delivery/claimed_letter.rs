//! The record of a dead letter that was redriven or purged.
//!
//! A worker that dies between the copy of a message and its deletion leaves the job in both queues. A redrive or purge that meets
//! the copy first records which letter of this end it handles. The message is then deleted at its next delivery,
//! and a second letter of the same end counts as a copy. The record is true whatever happens after it: the letter that it
//! names exists, or was handled.

use super::dead_envelope::{DeathOf, dead_envelope};
use super::disposition::Rejection;
use super::durable::{COMPLETED, create, digest_name, expiry, read};
use super::leased_job::LeasedJob;
use crate::envelope::Envelope;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::queue_core::QueueCore;
use crate::storage::{BlobName, StoreError, StoreErrorKind, Tries, needed_until};

/// Claims a dead letter before it is redriven or purged. Returns false if another letter of the same end was claimed: this one is a
/// copy of it. A letter that another program has written, or that the storage has moved in one step, needs no record.
///
/// # Errors
/// [`Storage`](ErrorKind::Storage) if the record cannot be written or read.
pub(crate) async fn claim_letter(core: &QueueCore, letter: &Envelope) -> Result<bool, Error> {
    let (Some(death), Some(note)) = (DeathOf::of(letter), &letter.dead_letter) else { return Ok(true) };
    if core.store().powers().dead_letters.is_some() {
        return Ok(true);
    }
    // Every delivery of the message that stores a letter has another number.
    let own = format!("{} {}", note.deliveries, note.time);
    let name = name(core, &death)?;
    let blobs = &**core.blobs();
    let tries = Tries::brief(core.runtime(), 1, 2);
    let needed = needed_until(core.now(), Some(expiry(core.now(), None)));
    match create(blobs, &name, own.clone(), needed, tries).await {
        Ok(true) => Ok(true),
        Ok(false) => Ok(read(blobs, &name).await?.is_none_or(|claimed| claimed == own)),
        Err(error) if is_refused(&error) => {
            crate::log::warn!(queue = %core.name, error = %chain(&error), "no permission to record that a dead letter is handled; a copy of it may run again");
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// Returns whether a message that is about to be dead-lettered without a run has a letter already that was redriven or purged.
///
/// # Errors
/// [`Storage`](ErrorKind::Storage) if the storage does not say.
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

/// Returns whether the storage refuses this for good: a program without permission for blobs works as without the record.
fn is_refused(error: &Error) -> bool {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<StoreError>());
    error.kind() == ErrorKind::Storage
        && source.is_some_and(|source| source.kind() == StoreErrorKind::Unauthorized)
}
