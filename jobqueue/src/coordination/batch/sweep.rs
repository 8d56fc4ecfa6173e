//! Removes the blobs of old batches.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::ledger::{Ledger, for_each_blob, page, tries};
use super::names::{BatchId, SWEPT, batch_of, container};
use crate::coordination::leader::{Leader, while_leading};
use crate::error::{Error, ErrorKind};
use crate::job::JobInfo;
use crate::storage::{BlobListing, BlobName, BlobProperties, ETag, LeaseId, Storage, delete_if_same};
use jobqueue_storage::fast::hex::to_hex;

/// The leadership of the one sweep that runs: blobs are deleted by their names, and a batch may begin under the id of a removed one.
const SWEEPER: &str = "jobqueue/sweep-batches";
/// The time for which a job that is redriven finds that it has sent the batch before.
const NOTE_LIFE: Duration = Duration::from_secs(365 * 86_400);
/// The number of batches that are removed at the same time.
const BATCHES_AT_ONCE: usize = 8;
/// The number of blobs of all these batches that are deleted at the same time.
const DELETED_AT_ONCE: usize = 32;
/// The number of batches in a row that cannot be removed after which the sweep ends: the storage is out of reach.
const MAX_FAILURES: u32 = 16;

/// Selects the batches that [`sweep_batches`] removes.
#[derive(Debug, Clone)]
pub struct BatchSweepOptions {
    finished: Duration,
    abandoned: Option<Duration>,
}

impl Default for BatchSweepOptions {
    fn default() -> Self {
        Self { finished: Duration::from_secs(14 * 86_400), abandoned: None }
    }
}

impl BatchSweepOptions {
    /// Selects batches whose continuation has ended and in which nothing has happened for 14 days. Unfinished batches are kept forever.
    pub fn new() -> Self {
        Self::default()
    }

    jobqueue_storage::setters! {
        /// Sets the age at which finished batches are removed, since the last change in them. It must be longer than a message can stay in a queue,
        /// including delays and redeliveries: 8 days are enough, unless jobs are sent with longer delays.
        ///
        /// A dead letter can be redriven after that. If its job has sent the batch, it does not send it again: of such a batch a blob of some
        /// hundred bytes stays for a year. A program that begins an id again after the sweep begins a new batch.
        finished(age: Duration) => finished;

        /// Also removes unfinished batches in which nothing has happened for this time. Their remaining jobs still run,
        /// but end no child. A worker that ran children of a batch may need 10 minutes to find that it is removed: do not use its id again
        /// before.
        abandoned(age: Duration) => abandoned;
    }
}

/// Removes the blobs of old batches and returns the number of removed batches. It can run on any machine and can be
/// interrupted. While another sweep runs, or for half a minute after one was interrupted, it removes nothing and returns 0. On a storage without
/// leases of blobs, do not run two at once. It deletes up to 32 blobs at the same time.
///
/// The blobs of a batch stay for a while after its continuation, so that late copies of its messages are recognised.
/// Run this once a day, for instance on a schedule; [`sweep`](crate::maintenance::sweep) does not remove batches.
///
/// # Errors
/// [`Storage`](crate::ErrorKind::Storage) if the batches cannot be listed, if some of them cannot be removed, or if the lease of the sweep is
/// lost: the others are removed all the same, and the next call removes the rest.
/// [`Configuration`](crate::ErrorKind::Configuration) if the thread that renews the lease cannot be started.
///
/// # Cancel safety
/// If the future is dropped, a batch may be half removed; the next call removes the rest.
pub async fn sweep_batches(storage: &Storage, options: BatchSweepOptions) -> Result<u64, Error> {
    if storage.stores().leases().is_err() {
        return sweep(storage, options).await;
    }
    let Some(leadership) = Leader::new(storage, SWEEPER)?.try_lead().await? else { return Ok(0) };
    let swept = while_leading(&leadership, sweep(storage, options)).await;
    leadership.release().await;
    swept.unwrap_or_else(|| {
        let text = "the lease of the sweep is lost; sweep again to remove the rest";
        Err(Error::new(ErrorKind::Storage, text).with_retryable(true))
    })
}

async fn sweep(storage: &Storage, options: BatchSweepOptions) -> Result<u64, Error> {
    let mut batches: BTreeMap<String, Found> = BTreeMap::new();
    let listed = for_each_blob(storage, "", |name, properties| {
        let Some((id, rest)) = batch_of(name) else { return };
        let found = batches.entry(id.to_owned()).or_default();
        if rest == SWEPT {
            found.swept = Some(properties.modified);
            return;
        }
        found.newest = found.newest.max(Some(properties.modified));
        match rest {
            "done" => found.done = Some(properties.modified),
            // The mark is that of a former batch of this id, which a sweep that was interrupted has left.
            "token" => found.done = found.done.filter(|done| *done >= properties.modified),
            _ => {}
        }
    })
    .await?;
    let now = listed.unwrap_or_else(|| storage.runtime().now());
    let is_older = |at: Option<SystemTime>, age| {
        at.is_some_and(|at| now.duration_since(at).is_ok_and(|passed| passed > age))
    };
    batches.retain(|_, found| {
        if found.newest.is_none() {
            return is_older(found.swept, NOTE_LIFE);
        }
        let age = if found.done.is_some() { Some(options.finished) } else { options.abandoned };
        age.is_some_and(|age| is_older(found.newest, age))
    });
    let deletions = Semaphore::new(DELETED_AT_ONCE);
    let removals = batches.into_iter().map(|(id, found)| remove(storage, id, found, &deletions));
    let mut removals = stream::iter(removals).buffer_unordered(BATCHES_AT_ONCE);
    let (mut removed, mut failed, mut failed_in_a_row) = (0, 0, 0);
    let mut failure = None;
    while failed_in_a_row < MAX_FAILURES
        && let Some(removal) = removals.next().await
    {
        match removal {
            Ok(batches) => (removed, failed_in_a_row) = (removed + batches, 0),
            Err(error) => {
                (failed, failed_in_a_row, failure) = (failed + 1, failed_in_a_row + 1, Some(error));
            }
        }
    }
    let Some(error) = failure else { return Ok(removed) };
    let text =
        format!("{removed} batches were removed, and {failed} could not be; sweep again to remove the rest");
    Err(Error::new(error.kind(), text).with_retryable(error.is_retryable()).with_source(error))
}

#[derive(Debug, Default)]
struct Found {
    done: Option<SystemTime>,
    /// The time of the last change of the batch; `None` if only the note of its sweep is there.
    newest: Option<SystemTime>,
    swept: Option<SystemTime>,
}

/// The note that a sweep leaves of a batch that a job has sent.
#[derive(Debug, Serialize, Deserialize)]
struct Swept {
    job: String,
    children: u64,
}

/// Returns a short name for a job.
pub(super) fn name_of(job: &JobInfo) -> String {
    to_hex(&Sha256::digest(format!("{} {}", job.source, job.id))[..16])
}

impl Ledger<'_> {
    /// Returns the number of children of the batch if it was swept and this job has sent it.
    pub(super) async fn swept_of(&self, job: &JobInfo) -> Result<Option<u64>, Error> {
        let swept: Option<Swept> = self.read(&self.id.blob(SWEPT)?).await?;
        Ok(swept.filter(|swept| swept.job == name_of(job)).map(|swept| swept.children))
    }

    /// Returns the note of the batch, which has ended and is about to be swept, if a job has sent it.
    async fn note(&self) -> Result<Option<Swept>, Error> {
        let plan = match self.plan().await {
            Err(error) if error.kind() == ErrorKind::Undecodable => return Ok(None),
            plan => plan?,
        };
        Ok(plan.and_then(|plan| Some(Swept { children: plan.children, job: plan.job? })))
    }

    /// Deletes the last blobs in this order, which were `listed` with these tags: a batch cannot begin under the id before its plan is gone, and an
    /// interrupted sweep can be resumed. Stops at a blob that was written since.
    async fn remove_last(&self, last: [&BlobName; 3], listed: &BTreeMap<String, ETag>) -> Result<(), Error> {
        for blob in last {
            if !self.remove_listed(blob, listed.get(blob.name())).await? {
                break;
            }
        }
        Ok(())
    }

    /// Deletes a blob that was listed with this tag. Returns false if it has another: once the plan is gone, a batch may begin under the id.
    async fn remove_listed(&self, blob: &BlobName, tag: Option<&ETag>) -> Result<bool, Error> {
        let Some(tag) = tag else { return Ok(true) };
        let Ok(leases) = self.storage.leases() else { return self.remove(blob).await.map(|()| true) };
        let lease = LeaseId::random(self.storage.runtime());
        let leases = &**leases;
        let is_listed = |found: &BlobProperties| found.etag == *tag;
        let delete = || delete_if_same(&**self.storage.blobs(), leases, blob, lease, is_listed);
        match tries(self.storage).run(delete).await {
            Err(error) if error.is_missing_blob() => Ok(true),
            deleted => Ok(deleted?),
        }
    }
}

/// Deletes the blobs of a batch, one page after the other, except for the note of its sweep. Returns the number of removed batches: 0 if only
/// a note was left, or if a blob was written since the batch was listed: it goes on, although its first pages may be gone.
async fn remove(storage: &Storage, id: String, found: Found, deletions: &Semaphore) -> Result<u64, Error> {
    let ledger = Ledger::new(storage, BatchId::new(&id)?);
    let ledger = &ledger;
    let (prefix, swept) = (format!("{id}/"), &ledger.id.blob(SWEPT)?);
    let last = [&ledger.id.blob("plan")?, &ledger.id.blob("token")?, &ledger.id.blob("done")?];
    let Some(newest) = found.newest else {
        // A batch may have begun under the id since the note was listed.
        ledger.remove(swept).await?;
        return Ok(0);
    };
    let note = if found.done.is_some() { ledger.note().await? } else { None };
    let is_newer = |name: &str, blob: &BlobProperties| blob.modified > newest && name != swept.name();
    let mut goes_on = false;
    for_each_blob(storage, &prefix, |name, blob| goes_on |= is_newer(name, blob)).await?;
    if goes_on {
        return Ok(0);
    }
    if let Some(note) = note {
        ledger.replace(swept, &note).await?;
    }
    let is_kept = |name: &str| name == swept.name() || last.iter().any(|blob| blob.name() == name);
    let (mut next, mut has_deleted, mut listed) = (None::<String>, false, BTreeMap::new());
    loop {
        let BlobListing { blobs, next: following, .. } = page(storage, &prefix, next.as_deref()).await?;
        // The removal of many blobs takes minutes: its program may have begun again meanwhile.
        if blobs.iter().any(|(name, blob)| is_newer(name, blob)) {
            if has_deleted {
                crate::log::warn!(batch = %id, "the batch began again while a sweep removed it: some of its blobs are gone, and it may never end");
            }
            return Ok(0);
        }
        let (kept, blobs): (Vec<_>, Vec<_>) = blobs.into_iter().partition(|(name, _)| is_kept(name));
        listed.extend(kept.into_iter().map(|(name, blob)| (name, blob.etag)));
        has_deleted |= !blobs.is_empty();
        let delete = async |(name, _): (String, BlobProperties)| {
            let blob = BlobName::new(container()?, name)?;
            let _permit = deletions.acquire().await;
            ledger.remove(&blob).await
        };
        stream::iter(blobs.into_iter().map(Ok)).try_for_each_concurrent(DELETED_AT_ONCE, delete).await?;
        next = following;
        if next.is_none() {
            ledger.remove_last(last, &listed).await?;
            return Ok(1);
        }
    }
}
