//! The end of a job as part of a transaction of its handler.
//!
//! The transaction writes into the message that the handler has finished, as a delivery does whose hooks have failed. A worker that finds this
//! there completes the job and does not run it.

use std::sync::atomic::Ordering;

use bytes::Bytes;

use super::context::{Context, HandlerOutput};
use super::durable::{ONCE, digest_name, expiry};
use super::leased_job::{Content, LeasedJob};
use super::run::HandlerEnd;
use crate::envelope::Identity;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::lease::LeaseError;
use crate::storage::{BlobName, MessageRef, PutBlob, StoreError, UpdateMessage, Updated, needed_until};
use crate::sync::lock;

const NOT_COMMITTED: &str = "the transaction in which the handler has completed the job did not commit";

impl Context {
    /// Writes into the message that the handler has finished. `put_blob` and `update` do so within the transaction of the caller.
    pub(crate) fn finish_in_transaction(
        &self,
        put_blob: impl Fn(&BlobName, Bytes, PutBlob) -> Result<(), StoreError>,
        update: impl Fn(&MessageRef, &UpdateMessage) -> Result<Updated, StoreError>,
    ) -> Result<(), Error> {
        let job = self.leased_job();
        let Ok(_saving) = job.saving.try_lock() else {
            let text = "a checkpoint of the job is being saved; await it before the job is completed";
            return Err(Error::new(ErrorKind::Conflict, text).with_retryable(true));
        };
        let Some(mut envelope) = job.envelope().filter(|_| !job.is_unwritable) else {
            let text = "the event has no room for a record that its handler has finished";
            return Err(Error::new(ErrorKind::TooLarge, text));
        };
        envelope.history.finished = Some(self.left().to_json()?);
        let rendered = job.render(&mut envelope)?;
        for (reference, data) in rendered.blobs {
            let (name, put) = job.core.claim_checks.blob(&reference, job.expires)?;
            put_blob(&name, data, put)?;
        }
        let visibility = job.lease.within_life(job.settings.timeout);
        if visibility.is_zero() {
            return Err(LeaseError::Lost.into());
        }
        let change = UpdateMessage::new(visibility).with_text(rendered.text);
        job.lease.change_in_transaction(|message| update(message, &change))?;
        *lock(&job.in_transaction) = Some(Content::Event(Box::new(envelope)));
        Ok(())
    }

    /// Returns the blob that records an effect of the job, and how it is written.
    pub(crate) fn record_in_transaction(&self, key: &str) -> Result<(BlobName, PutBlob), Error> {
        let (job, info) = (self.leased_job(), self.info());
        let identity = Identity::from(info).digest().to_string();
        // Another name than that of `once`, which records a result.
        let name = digest_name(ONCE, [info.queue.as_str(), &identity, key, "in transaction"])?;
        let now = job.core.now();
        let needed = needed_until(now, Some(expiry(now, job.expires)));
        Ok((name, PutBlob::if_absent().with_metadata(needed)))
    }
}

/// Returns the end of a handler that has completed its job in a transaction: the transaction decides, whatever the handler returned.
pub(super) async fn ended_by_transaction(
    leased_job: &LeasedJob,
    ended: Result<HandlerOutput, HandlerEnd>,
) -> Result<HandlerOutput, HandlerEnd> {
    match leased_job.lease.has_committed().await {
        Ok(true) => {
            leased_job.end_is_stored.store(true, Ordering::Relaxed);
            if let Some(written) = lock(&leased_job.in_transaction).take() {
                *leased_job.content() = written;
            }
            Ok(HandlerOutput::kept_with(leased_job).unwrap_or_default())
        }
        Ok(false) => ended.and_then(|_| Err(HandlerEnd::Failed(NOT_COMMITTED.into()))),
        Err(error) => {
            // The next delivery finds what the transaction has written.
            crate::log::warn!(
                queue = %leased_job.core.name,
                error = %chain(&error),
                "whether the job is done is not known: the message says it at its next delivery"
            );
            Err(HandlerEnd::LeaseLost)
        }
    }
}
