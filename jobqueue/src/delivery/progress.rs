//! The checkpoint of a job: its progress, and the results of its durable steps.

use futures_util::future::BoxFuture;
use serde_json::value::RawValue;
use tokio::sync::{MappedMutexGuard, MutexGuard};
use tokio::time::Instant;

use super::checkpoint::{KnownCheckpoint, Saved, to_json};
use super::leased_job::LeasedJob;
use super::message_changes::may_succeed_soon;
use crate::claim_check::MAX_CHECKPOINT_BYTES;
use crate::clock::WITHOUT_END;
use crate::envelope::{Checkpoint, Envelope};
use crate::error::{Error, ErrorKind};

/// The outcome of saving a checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckpointOutcome {
    /// The checkpoint is saved: a later attempt resumes from it or from a later one.
    Saved,
    /// The answer was lost. This delivery continues from the checkpoint anyway, and its next change of the
    /// message saves the checkpoint too, if the lease turns out to be held. Otherwise a later attempt resumes
    /// from this checkpoint or from the previous one.
    Unknown,
}

/// Returns the latest checkpoint. The first call reads it from the message or its blob.
pub(crate) fn load_saved(job: &LeasedJob) -> BoxFuture<'_, Result<Saved, Error>> {
    Box::pin(async { Ok(known_checkpoint(job).await?.newest.clone()) })
}

async fn known_checkpoint(job: &LeasedJob) -> Result<MappedMutexGuard<'_, KnownCheckpoint>, Error> {
    let mut known = job.checkpoints.known.lock().await;
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

pub(super) fn has_stored_checkpoint(job: &LeasedJob) -> bool {
    let is_stored = |envelope: &Envelope| matches!(envelope.history.checkpoint, Some(Checkpoint::Stored(_)));
    job.with_envelope(is_stored).unwrap_or(false)
}

/// Reads a checkpoint that is in a blob, so that a storage failure surfaces before the handler runs. Any
/// other error is returned when the handler reads the checkpoint.
pub(super) async fn read_stored_checkpoint(job: &LeasedJob) -> Result<(), Error> {
    match load_saved(job).await {
        Err(error) if error.is_retryable() => Err(error),
        _ => Ok(()),
    }
}

/// Saves progress (JSON), together with the results of steps.
pub(crate) fn save_progress(
    job: &LeasedJob,
    json: String,
) -> BoxFuture<'_, Result<CheckpointOutcome, Error>> {
    let change = |saved: &mut Saved| {
        saved.progress = Some(raw_json(json)?);
        Ok(())
    };
    Box::pin(change_saved(job, change))
}

/// Saves the result of a step (JSON), together with the progress and the other results. `None` if JSON cannot
/// express the result.
///
/// If the storage refuses it, saving is retried until the lease ends: the work may have taken hours. The next
/// change of the message saves the result too, even if the handler is dropped before.
pub(crate) fn save_step<'j>(
    job: &'j LeasedJob,
    name: &'j str,
    json: Option<String>,
) -> BoxFuture<'j, Result<CheckpointOutcome, Error>> {
    Box::pin(async move {
        let result = json.map(raw_json).transpose()?;
        // Each try adds the result again: a refusal of another change may have removed it in between.
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
    let mut known = known_checkpoint(job).await?;
    let mut next = known.newest.clone();
    change(&mut next)?;
    let json = to_json(&next)?;
    if json.len() as u64 > MAX_CHECKPOINT_BYTES {
        let text = format!("the checkpoint has {} bytes; {MAX_CHECKPOINT_BYTES} are allowed", json.len());
        return Err(Error::new(ErrorKind::TooLarge, text));
    }
    // The change belongs to all later ones, even if the handler drops this future, if the storage refuses it
    // for now, or if there is no answer: later steps may depend on it.
    let former = std::mem::replace(&mut known.newest, next);
    known.accepted.get_or_insert(former);
    let outcome = match job.checkpoint(json).await {
        Ok(()) => CheckpointOutcome::Saved,
        // The lease may still be held: finishing the handler's work is better than starting it again.
        Err(error) if error.is_lease_uncertain() => CheckpointOutcome::Unknown,
        Err(error) => {
            // The storage may accept a later change without this one. Until then the message's content keeps
            // this one, so that the put-back can save it.
            if !may_succeed_soon(&error)
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

fn raw_json(json: String) -> Result<Box<RawValue>, Error> {
    RawValue::from_string(json)
        .map_err(|e| Error::new(ErrorKind::Invalid, "the progress is not JSON").with_source(e))
}
