//! Completes a job as part of a transaction of its handler.
//!
//! The transaction marks the message as finished, as a delivery does whose hooks have failed. A worker that
//! receives a message with this mark completes the job and does not run it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::MutexGuard;

use super::context::Context;
use super::durable::{digest_name, expiry, life_extension, read_recorded};
use super::leased_job::{Content, LeasedJob};
use crate::envelope::{Envelope, Identity};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::lease::{LeaseError, TransactionChange};
use crate::queue_core::ONCE;
use crate::storage::{Blob, BlobName, MessageRef, PutBlob, StoreError, UpdateMessage, Updated, needed_until};
use crate::sync::lock;

/// The changes by which a transaction of the handler completes the job: first the blobs, then the message.
pub(crate) struct EndInTransaction<'c> {
    /// The blobs that the message will refer to.
    pub(crate) blobs: Vec<(BlobName, Bytes, PutBlob)>,
    pub(crate) change: UpdateMessage,
    job: &'c LeasedJob,
    message: TransactionChange<'c>,
    envelope: Box<Envelope>,
    _saving: MutexGuard<'c, ()>,
}

impl EndInTransaction<'_> {
    /// Returns the message with the receipt under which the transaction changes it.
    pub(crate) fn message(&self) -> &MessageRef {
        self.message.message()
    }

    /// Takes the answer to the change of the message. Returns the pause after which the change must be
    /// repeated; `None` if it is applied.
    pub(crate) fn answered(
        &mut self,
        answer: Result<Updated, StoreError>,
    ) -> Result<Option<Duration>, Error> {
        let pause = self.message.answered(answer)?;
        if pause.is_none() {
            *lock(&self.job.in_transaction) = Some(Content::Event(self.envelope.clone()));
        }
        Ok(pause)
    }
}

impl Context {
    /// Returns the changes that the caller's transaction must write, so that its commit completes the job.
    pub(crate) fn end_in_transaction(&self) -> Result<EndInTransaction<'_>, Error> {
        let job = self.leased_job();
        let Ok(saving) = job.saving.try_lock() else {
            let text = "a checkpoint of the job is being saved; await it before the job is completed";
            return Err(Error::new(ErrorKind::Conflict, text).with_retryable(true));
        };
        let Some(mut envelope) = job.envelope() else { return Err(LeaseError::Closed.into()) };
        envelope.history.finished = Some(self.output().to_json()?);
        let rendered = job.render(&mut envelope)?;
        let mut blobs = Vec::with_capacity(rendered.blobs.len());
        for (reference, data) in rendered.blobs {
            let (name, put) = job.core.claim_checks.blob(&reference, job.expires)?;
            blobs.push((name, data, put));
        }
        let visibility = job.lease.within_life(job.settings.timeout);
        if visibility.is_zero() {
            return Err(LeaseError::Lost.into());
        }
        let change = UpdateMessage::new(visibility).with_text(rendered.text);
        let message = job.lease.change_in_transaction()?;
        Ok(EndInTransaction { blobs, change, job, message, envelope: Box::new(envelope), _saving: saving })
    }

    /// Returns the name of the blob that records an effect of the job, and the options for writing it.
    pub(crate) fn record_in_transaction(&self, key: &str) -> Result<(BlobName, PutBlob), Error> {
        let (job, info) = (self.leased_job(), self.info());
        let identity = Identity::from(info).digest().to_string();
        // A name different from the record of `once`, which has a result.
        let name = digest_name(ONCE, [info.queue.as_str(), &identity, key, "in transaction"])?;
        let now = job.core.now();
        let needed = needed_until(now, Some(expiry(now, job.expires)));
        Ok((name, PutBlob::if_absent().with_metadata(needed)))
    }

    /// Returns the options that extend the life of a record that a transaction has found; `None` if it lives
    /// long enough.
    pub(crate) fn prolonged_record(&self, record: &Blob) -> Option<PutBlob> {
        life_extension(self.leased_job(), record)
    }

    /// Extends the life of a record that a transaction has found, if it is short, in a background task for
    /// which the transaction does not wait.
    pub(crate) fn prolong_beside_transaction(&self, name: BlobName) {
        let job = Arc::clone(self.leased_job());
        let runtime = job.core.runtime().clone();
        drop(runtime.spawn(async move {
            if let Err(error) = read_recorded(&job, &name).await {
                crate::log::debug!(queue = %job.core.name, error = %chain(&error), "the record of an effect cannot be read");
            }
        }));
    }
}

/// Returns whether the transaction that completed the job was committed. If so, its text becomes the current
/// content.
///
/// # Errors
/// The outcome of the transaction is unknown. The next delivery finds the text that it has written, if any.
pub(super) async fn has_committed(leased_job: &LeasedJob) -> Result<bool, LeaseError> {
    let committed = leased_job.lease.has_committed().await.inspect_err(|error| {
        crate::log::warn!(
            queue = %leased_job.core.name,
            job = leased_job.logged_id(),
            error = %chain(error),
            "whether the job is done is not known: the message says it at its next delivery"
        );
    });
    if let Ok(true) = committed {
        leased_job.end_is_stored.store(true, Ordering::Relaxed);
        if let Some(written) = lock(&leased_job.in_transaction).take() {
            *leased_job.content() = written;
        }
    }
    committed
}
