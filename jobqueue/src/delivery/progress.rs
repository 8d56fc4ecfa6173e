//! The checkpoint of a job: its progress, and the results of its durable steps.

use futures_util::future::BoxFuture;
use serde_json::value::RawValue;
use tokio::sync::{MappedMutexGuard, MutexGuard};
use tokio::time::Instant;

use super::leased_job::LeasedJob;
use super::message_changes::may_pass;
use super::saved::{KnownCheckpoint, Saved, to_json};
use crate::claim_check::MAX_CHECKPOINT_BYTES;
use crate::clock::WITHOUT_END;
use crate::envelope::{Checkpoint, Envelope};
use crate::error::{Error, ErrorKind};

/// The answer to a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckpointOutcome {
    /// It is saved: a later attempt goes on from it, or from a later one.
    Saved,
    /// The answer was lost. This delivery goes on from the checkpoint all the same, and its next change of the message saves it too, if the
    /// lease turns out to be held. Otherwise a later attempt resumes from this checkpoint or from the one before.
    Unknown,
}

/// Returns the latest checkpoint. The first call reads it from the message or its blob.
pub(crate) fn load_saved(job: &LeasedJob) -> BoxFuture<'_, Result<Saved, Error>> {
    Box::pin(async { Ok(known(job).await?.newest.clone()) })
}

async fn known(job: &LeasedJob) -> Result<MappedMutexGuard<'_, KnownCheckpoint>, Error> {
    let mut known = job.saved.lock().await;
    if known.is_none() {
        let newest = match job.load_checkpoint().await? {
            None => Saved::default(),
            Some(json) => serde_json::from_str(&json).map_err(|e| {
                let text = "the checkpoint was not written by this library, or is damaged: this job can neither resume nor save one; \
                            dead-letter it, and send it again";
                Error::new(ErrorKind::Undecodable, text).with_source(e)
            })?,
        };
        *known = Some(KnownCheckpoint { newest, accepted: None });
    }
    Ok(MutexGuard::map(known, Option::get_or_insert_default))
}

/// Returns whether the checkpoint is in a blob.
pub(super) fn has_stored_checkpoint(job: &LeasedJob) -> bool {
    let is_stored = |envelope: &Envelope| matches!(envelope.history.checkpoint, Some(Checkpoint::Stored(_)));
    job.with_envelope(is_stored).unwrap_or(false)
}

/// Reads a checkpoint that is in a blob, so that a storage failure shows before the handler runs. The handler
/// learns of any other problem when it reads the checkpoint.
pub(super) async fn read_stored_checkpoint(job: &LeasedJob) -> Result<(), Error> {
    match load_saved(job).await {
        Err(error) if error.is_retryable() => Err(error),
        _ => Ok(()),
    }
}

/// Saves progress (JSON) and keeps the results of steps.
pub(crate) fn save_progress(
    job: &LeasedJob,
    json: String,
) -> BoxFuture<'_, Result<CheckpointOutcome, Error>> {
    let change = |saved: &mut Saved| {
        saved.progress = Some(raw(json)?);
        Ok(())
    };
    Box::pin(change_saved(job, change))
}

/// Saves the result of a step (JSON) and keeps the progress and the other results. `None`: the step has a result that JSON cannot express.
///
/// While the storage refuses to save it, this is tried until the lease ends: the work may have taken hours. The next change of the message
/// writes it too, also when the handler is dropped meanwhile.
pub(crate) fn save_step<'j>(
    job: &'j LeasedJob,
    name: &'j str,
    json: Option<String>,
) -> BoxFuture<'j, Result<CheckpointOutcome, Error>> {
    Box::pin(async move {
        let result = json.map(raw).transpose()?;
        // Each try adds it again: the refusal of another change may have removed it meanwhile.
        let change = || {
            change_saved(job, |saved| {
                match &result {
                    Some(result) => _ = saved.steps.insert(name.to_owned(), result.clone()),
                    None => _ = saved.unwritable.insert(name.to_owned()),
                }
                Ok(())
            })
        };
        let outcome = job.retry_until(Instant::now() + WITHOUT_END, change).await;
        if matches!(&outcome, Err(error) if error.is_retryable()) {
            job.lease.check_not_ended()?;
        }
        outcome
    })
}

async fn change_saved(
    job: &LeasedJob,
    change: impl FnOnce(&mut Saved) -> Result<(), Error> + Send,
) -> Result<CheckpointOutcome, Error> {
    let mut known = known(job).await?;
    let mut next = known.newest.clone();
    change(&mut next)?;
    let json = to_json(&next)?;
    if json.len() as u64 > MAX_CHECKPOINT_BYTES {
        let text = format!("the checkpoint has {} bytes; {MAX_CHECKPOINT_BYTES} are allowed", json.len());
        return Err(Error::new(ErrorKind::TooLarge, text));
    }
    // It belongs to all later changes, also if the handler drops it while it is saved, if it is refused for now, or if there is no answer:
    // later steps may depend on it.
    let former = std::mem::replace(&mut known.newest, next);
    known.accepted.get_or_insert(former);
    let outcome = match job.checkpoint(json).await {
        Ok(()) => CheckpointOutcome::Saved,
        // The lease may still be held: what the handler has begun is better finished than begun again.
        Err(error) if error.is_lease_uncertain() => CheckpointOutcome::Unknown,
        Err(error) => {
            // The storage may take a later change alone. Until then the content of the message keeps this one, for its put-back.
            if !may_pass(&error)
                && let Some(accepted) = known.accepted.take()
            {
                known.newest = accepted;
            }
            return Err(error);
        }
    };
    known.accepted = None;
    Ok(outcome)
}

fn raw(json: String) -> Result<Box<RawValue>, Error> {
    RawValue::from_string(json)
        .map_err(|e| Error::new(ErrorKind::Invalid, "the progress is not JSON").with_source(e))
}
