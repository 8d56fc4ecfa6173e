//! Copies of the blobs that a message refers to, for a copy of the message: a blob belongs to one message, which may delete it.

use super::leased_job::references;
use super::queue_core::QueueCore;
use crate::claim_check::PayloadError;
use crate::envelope::{Checkpoint, Envelope, Payload, StoredReference};
use crate::error::Error;
use crate::name::QueueName;

/// The blobs of a message that is being copied.
#[derive(Debug, Default)]
pub(super) struct CopiedBlobs {
    /// Those of the original, which the copy does not need.
    pub(super) old: Vec<StoredReference>,
    /// Those of the copy.
    pub(super) new: Vec<StoredReference>,
    /// The reason why the payload has no copy: the copy refers to what the original referred to.
    pub(super) lacking: Option<PayloadError>,
}

impl QueueCore {
    /// Copies the blobs of `envelope`, which was found in `queue`, and has it refer to the copies, which never expire. What can
    /// never be read stays as it is, as evidence.
    ///
    /// # Errors
    /// A blob cannot be read or written now; nothing is left behind.
    pub(super) async fn copy_blobs(
        &self,
        queue: &QueueName,
        envelope: &mut Envelope,
    ) -> Result<CopiedBlobs, Error> {
        let mut copied = CopiedBlobs::default();
        for old in references(envelope) {
            if copied.old.contains(&old) {
                continue;
            }
            match self.copy_blob(queue, &old).await {
                Ok(Ok(new)) => {
                    refer(envelope, &old, &new);
                    copied.old.push(old);
                    copied.new.push(new);
                }
                Ok(Err(never)) => {
                    if matches!(&envelope.payload, Payload::Stored(payload) if *payload == old) {
                        copied.lacking = Some(never);
                    }
                }
                Err(error) => {
                    self.remove_blobs(queue, copied.new).await;
                    return Err(error);
                }
            }
        }
        Ok(copied)
    }

    /// The copy of a blob, or why there can never be one.
    async fn copy_blob(
        &self,
        queue: &QueueName,
        old: &StoredReference,
    ) -> Result<Result<StoredReference, PayloadError>, Error> {
        let data = match self.claim_checks.load(queue, old).await {
            Ok(data) => data,
            Err(PayloadError::Unreadable(error)) => return Err(error.into()),
            Err(never) => return Ok(Err(never)),
        };
        let new = self.claim_checks.reference(&self.name, &data);
        self.claim_checks.store(&new, data, None).await?;
        Ok(Ok(new))
    }

    /// Deletes blobs that no message refers to, of a message that was found in `queue`. What fails is left to a sweep.
    pub(super) async fn remove_blobs(&self, queue: &QueueName, references: Vec<StoredReference>) {
        for reference in references {
            if let Err(error) = self.claim_checks.remove(queue, &reference).await {
                tracing::debug!(%queue, %error, "a blob is not removed; a sweep will");
            }
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
