//! Hands a message over to the dead-letter queue of the storage, which moves it in one step: no copy, and no deletion that
//! could fail after it.

use super::dead_envelope::dead_envelope;
use super::disposition::Rejection;
use super::leased_job::LeasedJob;
use crate::envelope::Envelope;
use crate::error::Error;
use crate::lease::LeaseError;
use crate::queue_core::{MAX_COPIED_BYTES, copy_blobs, remove_blobs};
use crate::storage::{Certainty, DeadLetterCause, DeadLetterMessage};

/// Moves the message, with its reason, its history and blobs that never expire; then deletes the blobs of the message. The
/// caller holds the lock on saving.
///
/// The message stays where it is if the storage refuses, or if its blobs cannot be copied now.
pub(super) async fn move_in_one_step(job: &LeasedJob, rejection: &Rejection) -> Result<Certainty, Error> {
    let mut envelope = dead_envelope(job, rejection, u32::from(rejection.attempted))?;
    let mut copied = copy_blobs(&job.core, &job.core.name, &mut envelope, MAX_COPIED_BYTES).await?;
    let text = match store_dead_text(job, &mut envelope, &mut copied.new).await {
        Ok(text) => text,
        Err(error) => {
            remove_blobs(&job.core, &job.core.name, copied.new).await;
            return Err(error);
        }
    };
    let cause = DeadLetterCause::new(rejection.reason.as_str()).with_description(envelope.history.last_error);
    match job.lease.dead_letter(&DeadLetterMessage::new(text, cause)).await {
        Ok(()) => {
            remove_blobs(&job.core, &job.core.name, copied.old).await;
            Ok(Certainty::Applied)
        }
        // Whichever it is, its blobs are there.
        Err(LeaseError::Uncertain(_)) => Ok(Certainty::Unknown),
        Err(error) => {
            remove_blobs(&job.core, &job.core.name, copied.new).await;
            Err(error.into())
        }
    }
}

/// Returns the text of the dead letter, after storing oversized parts in blobs.
async fn store_dead_text(
    job: &LeasedJob,
    envelope: &mut Envelope,
    new: &mut Vec<crate::envelope::StoredReference>,
) -> Result<String, Error> {
    let rendered = job.render(envelope)?;
    for (reference, data) in rendered.blobs {
        new.push(reference.clone());
        job.core.claim_checks.store(&reference, data, None).await?;
    }
    Ok(rendered.text)
}
