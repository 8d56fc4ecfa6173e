//! Deletes the blobs of a message, and copies them for a copy of the message. A blob belongs to exactly one
//! message, and may be deleted with it, unless its reference says that messages share it.

use super::queue::QueueCore;
use crate::claim_check::PayloadError;
use crate::envelope::{Checkpoint, Envelope, Payload, StoredReference};
use crate::error::Error;
use crate::storage::{QueueName, StoreErrorKind};

#[derive(Debug, Default)]
pub(crate) struct CopiedBlobs {
    /// The blobs of the original, which the copy does not need.
    pub(crate) old: Vec<StoredReference>,
    /// The blobs with [new names](CopyName::New): nothing else refers to them if the copy of the message is
    /// not stored.
    pub(crate) new: Vec<StoredReference>,
    /// The reason why a blob can never be copied. The copy of the message then refers to the blob of the
    /// original.
    pub(crate) lacking: Option<PayloadError>,
}

/// The name of the copy of a blob.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CopyName<'h> {
    New,
    /// The same name for each copy that is made for this holder, so that a change whose outcome is unknown
    /// leaves one copy, however often it is repeated. The copy stays if a try fails, because another try may
    /// need it.
    For(&'h str),
    /// Like [`For`](Self::For), for a holder that may put several messages: none of them owns the copy.
    SharedFor(&'h str),
}

/// The number of puts with an unknown outcome after which the messages of all further puts share their blobs.
pub(crate) const MAX_DOUBTS_WITH_OWN_BLOBS: u32 = 2;

/// The maximum size of a blob that a delivery copies, because a producer must not be able to exhaust a
/// worker's memory.
pub(crate) const MAX_COPIED_BYTES: u64 = 256 * 1024 * 1024;

/// Copies the blobs of `envelope`, a message of `queue`, and makes the envelope refer to the copies, which
/// never expire. Copies blobs of up to `limit` bytes, or up to the maximum payload of `core` if that is
/// larger. The envelope keeps its reference to a blob that can never be read, as evidence.
///
/// # Errors
/// A blob cannot be read or written now. No copy with a new name is left behind.
pub(crate) async fn copy_blobs(
    core: &QueueCore,
    queue: &QueueName,
    envelope: &mut Envelope,
    limit: u64,
    name: CopyName<'_>,
) -> Result<CopiedBlobs, Error> {
    let mut copied = CopiedBlobs::default();
    for old in envelope.references() {
        if copied.old.contains(&old) {
            continue;
        }
        match copy_blob(core, queue, &old, limit, name).await {
            Ok(Ok(new)) => {
                refer(envelope, &old, &new);
                copied.old.push(old);
                if matches!(name, CopyName::New) {
                    copied.new.push(new);
                }
            }
            Ok(Err(permanent)) => copied.lacking = Some(permanent),
            Err(error) => {
                remove_blobs(core, queue, copied.new).await;
                return Err(error);
            }
        }
    }
    Ok(copied)
}

/// Copies a blob. The inner error is the reason why the blob can never be copied.
async fn copy_blob(
    core: &QueueCore,
    queue: &QueueName,
    old: &StoredReference,
    limit: u64,
    name: CopyName<'_>,
) -> Result<Result<StoredReference, PayloadError>, Error> {
    let checks = &core.claim_checks;
    let named = match name {
        CopyName::New => None,
        CopyName::For(holder) => Some(old.copy_for(&core.name, holder)),
        CopyName::SharedFor(holder) => Some(old.copy_for(&core.name, holder).shared()),
    };
    // An earlier try may have written this copy.
    if let Some(named) = &named
        && checks.check(&core.name, named).await.is_ok()
    {
        return Ok(Ok(named.clone()));
    }
    let (data, _copying) = match checks.load_for_copy(queue, old, limit).await {
        Ok(loaded) => loaded,
        Err(PayloadError::Unreadable(error)) => return Err(error.into()),
        Err(permanent) => return Ok(Err(permanent)),
    };
    let new = named.unwrap_or_else(|| checks.reference(&core.name, &data));
    let stored = checks.store(&new, data, None).await;
    match (stored, name) {
        (Ok(()), _) => Ok(Ok(new)),
        (Err(error), CopyName::New) => {
            remove_blobs(core, &core.name, vec![new]).await;
            Err(error.into())
        }
        // Another process was faster.
        (Err(error), _) if error.kind() == StoreErrorKind::BlobAlreadyExists => Ok(Ok(new)),
        (Err(error), _) => Err(error.into()),
    }
}

/// Deletes unreferenced blobs of a message of `queue`. If that fails, a sweep deletes them later.
pub(crate) async fn remove_blobs(core: &QueueCore, queue: &QueueName, references: Vec<StoredReference>) {
    for reference in references {
        if let Err(error) = core.claim_checks.remove(queue, &reference).await {
            crate::log::debug!(%queue, %error, "a blob was not deleted; a sweep will delete it");
        }
    }
}

fn refer(envelope: &mut Envelope, old: &StoredReference, new: &StoredReference) {
    if let Payload::Stored(reference) = &mut envelope.payload
        && reference == old
    {
        *reference = new.clone();
    }
    if let Some(Checkpoint::Stored(reference)) = &mut envelope.history.checkpoint
        && reference == old
    {
        *reference = new.clone();
    }
}
