//! Moves a message to the dead-letter queue: copies it, then deletes it.
//!
//! If the process crashes between the two, the job is in both queues, but never in neither. The next delivery
//! finds the copy, or the [record](super::claimed_letter) of a redrive or purge that has handled the copy,
//! and only deletes the message. A storage with native dead-letter queues moves the message in one step.

use std::sync::Arc;
use std::time::Duration;

use super::claimed_letter::is_letter_claimed;
use super::dead_envelope::{DeathOf, dead_envelope, events};
use super::disposition::Rejection;
use super::leased_job::{Content, LeasedJob};
use super::order_position::{end_position_of_done, end_turn, is_done_in_order, position_of};
use crate::envelope::{Envelope, StoredReference};
use crate::error::{Error, ErrorKind};
use crate::event::Event;
use crate::group_log::EndState;
use crate::job::outcome::chain;
use crate::lease::LeaseError;
use crate::queue_core::{CopiedBlobs, CopyName, MAX_COPIED_BYTES, copy_blobs, ensure, remove_blobs};
use crate::storage::{
    Certainty, DeadLetterCause, DeadLetterMessage, MAX_MESSAGES, PutMessage, QueueName, Queues,
    StoreErrorKind,
};

/// The delay before the next attempt to move a message that could not be moved.
pub(crate) const DEAD_LETTER_RETRY: Duration = Duration::from_secs(30);

/// Records in the message that it must be dead-lettered, so that no later delivery runs it, whatever changes
/// until then, and whether or not the dead letter can be stored.
///
/// # Errors
/// The lease is lost or uncertain: the dead letter would exist together with a message that runs again. If
/// the storage refuses the change, there is no error, and the next change of the message writes the record.
pub(crate) async fn record_end(job: &LeasedJob, rejection: &mut Rejection) -> Result<(), Error> {
    match record_end_or_fail(job, rejection).await {
        Err(error) if !is_lease_error(&error) => {
            crate::log::debug!(queue = %job.core.name, error = %chain(&error), "the end of a job cannot be recorded");
            Ok(())
        }
        recorded => recorded,
    }
}

/// Like [`record_end`], but fails unless the end is recorded. For a job whose end lets other jobs start (the
/// next of its key, or the continuation of its batch), which must not happen while this job may still run.
///
/// # Errors
/// The lease is lost, or the end is not certainly recorded; the next change of the message writes it as well.
/// An end that can never be recorded is not an error, because waiting would not help.
pub(crate) async fn record_end_or_fail(job: &LeasedJob, rejection: &mut Rejection) -> Result<(), Error> {
    let is_recorded = job.with_envelope(|event| event.dead_letter.is_some()).unwrap_or(true);
    if is_recorded && !rejection.attempted {
        return Ok(());
    }
    let attempted = std::mem::take(&mut rejection.attempted);
    match save_end(job, rejection, u32::from(attempted)).await {
        Err(error) if !is_lease_error(&error) && !error.is_retryable() => {
            crate::log::error!(queue = %job.core.name, error = %chain(&error), "a failed attempt cannot be recorded");
            Ok(())
        }
        recorded => recorded,
    }
}

pub(super) fn is_lease_error(error: &Error) -> bool {
    error.is_lease_lost() || error.is_lease_uncertain()
}

async fn save_end(job: &LeasedJob, rejection: &Rejection, attempts: u32) -> Result<(), Error> {
    job.renew_to_settle();
    let _saving = job.saving.lock().await;
    let mut envelope = dead_envelope(job, rejection, attempts)?;
    *job.content() = Content::Event(Box::new(envelope.clone()));
    let rendered = job.render_and_store_blobs(&mut envelope, job.expires).await?;
    let saved = job.lease.save_here(rendered.text).await;
    job.remove_unless_saved(rendered.blobs, &saved).await;
    saved?;
    *job.content() = Content::Event(Box::new(envelope));
    Ok(())
}

/// Dead-letters a message that was received by hand, and does the work of the worker's hooks. Deletes the
/// message instead if its letter was redriven or purged, or if it belongs to a FIFO job that is done.
pub(crate) async fn dead_letter_by_hand(job: &LeasedJob, mut rejection: Rejection) -> Result<(), Error> {
    if is_letter_claimed(job, &rejection).await? {
        return Ok(job.lease.delete().await?);
    }
    if is_done_in_order(job).await? {
        end_position_of_done(job).await?;
        return Ok(job.complete().await?);
    }
    if position_of(job).is_some() {
        record_end_or_fail(job, &mut rejection).await?;
        end_turn(job, EndState::DeadLettered).await?;
    } else {
        record_end(job, &mut rejection).await?;
    }
    dead_letter(job, &rejection).await.map(drop)
}

/// Copies the message to the dead-letter queue, with its reason, history and blobs; then deletes the message
/// and its original blobs.
///
/// The message stays in its queue if the copy cannot be stored, or if its blobs cannot be read now. If the
/// answer to the deletion is lost, the message may be in both queues.
pub(crate) async fn dead_letter(job: &LeasedJob, rejection: &Rejection) -> Result<Certainty, Error> {
    job.renew_to_settle();
    let _saving = job.saving.lock().await;
    let moved = match job.core.store().powers().dead_letters {
        Some(_) => move_in_one_step(job, rejection).await,
        None => copy_and_delete(job, rejection).await,
    };
    if moved.is_ok() {
        job.core.observers().emit(|| Event::DeadLettered {
            job: job.info().map(Arc::new),
            queue: job.core.name.clone(),
            reason: rejection.reason.clone(),
        });
    }
    moved
}

/// Passes the message to the storage's native dead-letter queue, then deletes the original blobs. The message
/// stays in its queue if the storage refuses, or if its blobs cannot be copied now.
async fn move_in_one_step(job: &LeasedJob, rejection: &Rejection) -> Result<Certainty, Error> {
    let mut envelope = dead_envelope(job, rejection, u32::from(rejection.attempted))?;
    let (text, copied) = store_blobs_and_render(job, &mut envelope).await?;
    let cause = DeadLetterCause::new(rejection.reason.as_str()).with_description(envelope.history.last_error);
    match job.lease.dead_letter(&DeadLetterMessage::new(text, cause)).await {
        Ok(()) => {
            remove_blobs(&job.core, &job.core.name, copied.old).await;
            job.remove_superseded().await;
            Ok(Certainty::Applied)
        }
        // Both the original blobs and the copies stay, whichever queue the message is in.
        Err(LeaseError::Uncertain(_)) => Ok(Certainty::Unknown),
        Err(error) => {
            remove_blobs(&job.core, &job.core.name, copied.new).await;
            Err(error.into())
        }
    }
}

async fn copy_and_delete(job: &LeasedJob, rejection: &Rejection) -> Result<Certainty, Error> {
    let dead_letter_queue = job.core.name.dead_letter()?;
    let envelope = dead_envelope(job, rejection, u32::from(rejection.attempted))?;
    let obsolete = match find_earlier_copy(job, &dead_letter_queue, &envelope).await {
        Some(copy) => {
            let kept = copy.references();
            envelope.references().into_iter().filter(|reference| !kept.contains(reference)).collect()
        }
        None => store_copy(job, &dead_letter_queue, envelope).await?,
    };
    match job.lease.delete().await {
        Ok(()) => {
            remove_blobs(&job.core, &job.core.name, obsolete).await;
            job.remove_superseded().await;
            Ok(Certainty::Applied)
        }
        Err(LeaseError::Uncertain(_)) => Ok(Certainty::Unknown),
        Err(error) => Err(error.into()),
    }
}

/// Returns the copy of this message that an earlier delivery has stored, if it is among the first messages
/// that a peek returns. If this delivery has recorded the end, there is none.
async fn find_earlier_copy(
    job: &LeasedJob,
    dead_letter_queue: &QueueName,
    envelope: &Envelope,
) -> Option<Envelope> {
    let is_recorded_now = |event: &Envelope| {
        event.dead_letter.as_ref().is_some_and(|note| note.deliveries == job.dequeue_count)
    };
    if job.dequeue_count <= 1 || job.with_envelope(is_recorded_now).unwrap_or(false) {
        return None;
    }
    let letters = job.core.store().peek(dead_letter_queue, MAX_MESSAGES).await.ok()?;
    let copy = DeathOf::of(envelope)?;
    events(&letters).find(|found| DeathOf::of(found).as_ref() == Some(&copy))
}

/// Stores the blobs of the copy, then the copy. Returns the original blobs, which no copy needs.
async fn store_copy(
    job: &LeasedJob,
    dead_letter_queue: &QueueName,
    mut envelope: Envelope,
) -> Result<Vec<StoredReference>, Error> {
    let (text, copied) = store_blobs_and_render(job, &mut envelope).await?;
    // A process that was suspended must not add a second letter to the one that the next owner has written.
    let stored = match job.lease.check_not_ended() {
        Ok(()) => put_dead_letter(job.core.store(), dead_letter_queue, text).await,
        Err(error) => Err((Certainty::NotApplied, error.into())),
    };
    match stored {
        // A letter of an earlier delivery may refer to a blob that could not be copied then.
        Ok(()) if is_repeated(job) => Ok(Vec::new()),
        Ok(()) => Ok(copied.old),
        Err((certainty, error)) => {
            // Unless the copy is certainly not stored, it may need them.
            if certainty == Certainty::NotApplied {
                remove_blobs(&job.core, &job.core.name, copied.new).await;
            }
            Err(error)
        }
    }
}

/// Returns whether an earlier delivery has recorded the end, and may have stored a letter.
fn is_repeated(job: &LeasedJob) -> bool {
    let is_recorded_before = |event: &Envelope| {
        event.dead_letter.as_ref().is_some_and(|note| note.deliveries != job.dequeue_count)
    };
    job.with_envelope(is_recorded_before).unwrap_or(false)
}

/// Stores the blobs of a dead letter, which never expire, and returns its text. All deliveries after the one
/// that has recorded the end use the same copies: while the outcome of the puts is unknown, each of them puts
/// the letter again.
async fn store_blobs_and_render(
    job: &LeasedJob,
    envelope: &mut Envelope,
) -> Result<(String, CopiedBlobs), Error> {
    let name = if is_repeated(job) { CopyName::For(job.lease.message_id().as_str()) } else { CopyName::New };
    let mut copied = copy_blobs(&job.core, &job.core.name, envelope, MAX_COPIED_BYTES, name).await?;
    match job.render_and_store_blobs(envelope, None).await {
        Ok(rendered) => {
            copied.new.extend(rendered.blobs.into_iter().map(|(reference, _)| reference));
            Ok((rendered.text, copied))
        }
        Err(error) => {
            remove_blobs(&job.core, &job.core.name, copied.new).await;
            Err(error)
        }
    }
}

/// Puts a dead letter. An error says whether the letter may be stored nevertheless.
async fn put_dead_letter(
    store: &Queues,
    dead_letter_queue: &QueueName,
    text: String,
) -> Result<(), (Certainty, Error)> {
    for _ in 0..2 {
        match store.put(dead_letter_queue, PutMessage::new(text.clone())).await {
            Ok(_) => return Ok(()),
            Err(e) if e.kind() == StoreErrorKind::QueueNotFound => {
                let ensured = ensure(store, dead_letter_queue, None).await;
                ensured.map_err(|error| (Certainty::NotApplied, error))?;
            }
            Err(e) => return Err((e.certainty(), e.into())),
        }
    }
    let text =
        format!("the dead-letter queue `{dead_letter_queue}` was deleted repeatedly while writing to it");
    Err((Certainty::NotApplied, Error::new(ErrorKind::Storage, text)))
}
