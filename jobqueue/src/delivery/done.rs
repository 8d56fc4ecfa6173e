//! Remembers and records completed jobs, and answers whether a job was completed before: from the worker's
//! memory (`completed.rs`), then from records in blobs (`durable.rs`) if the worker is configured to write
//! them. Hooks have their own logs and ledgers.

use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::durable::{COMPLETED, digest_name, expiry, record};
use super::executor::Executor;
use super::leased_job::LeasedJob;
use crate::envelope::EventDigest;
use crate::error::{Error, ErrorKind};
use crate::job::JobInfo;
use crate::job::outcome::chain;
use crate::queue_core::QueueCore;
use crate::storage::{BlobStore, QueueName, Tries};

/// The minimum time for trying to record a completion, even if the lease has ended: a message whose deletion
/// got no answer may be delivered again.
const MIN_WRITE_TIME: Duration = Duration::from_secs(30);

impl Executor {
    /// Remembers that the job is done, so that no other message of it runs. Also records that durably if the
    /// worker is configured so, and returns whether that is done. A failed record does not change that the job
    /// is done.
    pub(super) async fn record_completion(&self, leased_job: &LeasedJob) -> bool {
        let queue = &leased_job.core.name;
        leased_job.with_envelope(|event| self.state.completed.remember(queue, event.digest()));
        let event = leased_job.event().filter(|_| self.state.options.durable_completions);
        let Some(event) = event else { return false };
        let give_up = leased_job.lease.deadline().max(Instant::now() + MIN_WRITE_TIME);
        let written = write_completion(&leased_job.core, event, give_up).await;
        if let Err(error) = &written {
            crate::log::warn!(queue = %leased_job.core.name, job = leased_job.logged_id(), error = %chain(error), "completion not recorded; the job may run again");
        }
        written.is_ok()
    }

    pub(super) fn is_remembered(&self, leased_job: &LeasedJob, job: &JobInfo) -> bool {
        let completed = &self.state.completed;
        leased_job.with_envelope(|event| completed.contains(&job.queue, || event.digest())) == Some(true)
    }

    /// Returns whether the job was done in an earlier delivery, or through another message.
    pub(super) async fn was_completed_before(&self, leased_job: &LeasedJob, job: &JobInfo) -> bool {
        if self.is_remembered(leased_job, job) {
            return true;
        }
        // In the first delivery, only a job with blobs can have been done through another message.
        let is_first = leased_job.is_certainly_first() && !leased_job.has_blobs();
        if !self.state.options.durable_completions || is_first {
            return false;
        }
        let Some(event) = leased_job.event() else { return false };
        let recorded = is_recorded(&**self.state.storage.blobs(), &job.queue, event);
        Box::pin(recorded).await.unwrap_or_else(|error| {
            // Without an answer the job runs: at least once, not at most once.
            crate::log::warn!(queue = %job.queue, job = leased_job.logged_id(), error = %chain(&error), "reading the recorded completions failed; the job runs");
            false
        })
    }
}

/// Records that a job is done although a message of it may still be delivered. Tries until `give_up`, when
/// that message can be delivered.
async fn write_completion(core: &QueueCore, event: EventDigest, give_up: Instant) -> Result<(), Error> {
    let name = digest_name(COMPLETED, [core.name.as_str(), &event.to_string()])?;
    let (expires, tries) = (expiry(core.now(), None), Tries::persistent(core.runtime()));
    let recorded = record(core, &name, "true".to_owned(), expires, tries);
    match timeout_at(give_up, recorded).await {
        Ok(recorded) => recorded.map(drop),
        Err(_) => Err(Error::new(ErrorKind::Storage, "the storage took no record before the lease ended")),
    }
}

/// Returns whether [`write_completion`] has recorded the job.
async fn is_recorded(blobs: &dyn BlobStore, queue: &QueueName, event: EventDigest) -> Result<bool, Error> {
    match blobs.blob_properties(&digest_name(COMPLETED, [queue.as_str(), &event.to_string()])?).await {
        Ok(_) => Ok(true),
        Err(e) if e.is_missing_blob() => Ok(false),
        Err(e) => Err(e.into()),
    }
}
