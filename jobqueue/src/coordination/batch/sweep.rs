//! Removes the blobs of old batches.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

use super::ledger::{Ledger, for_each_blob, for_each_blob_in, tries};
use super::names::{BatchId, batch_of, container, tombstones};
use crate::error::{Error, ErrorKind};
use crate::job::JobInfo;
use crate::storage::{BlobListing, BlobName, BlobPages, BlobProperties, Storage};
use jobqueue_storage::fast::hex::to_hex;

/// The life of a tombstone, during which the id of the removed batch is refused, and a redriven job finds
/// that it has sent the batch before.
const TOMBSTONE_LIFE: Duration = Duration::from_secs(365 * 86_400);
/// The number of batches that are removed concurrently.
const CONCURRENT_BATCHES: usize = 8;
/// The number of blobs that are deleted concurrently, over all batches.
const CONCURRENT_DELETIONS: usize = 32;
/// The number of failed removals in a row after which the sweep ends, because the storage is out of reach.
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
    /// Selects batches whose continuation has ended and in which nothing has happened for 14 days. Unfinished
    /// batches are kept forever.
    pub fn new() -> Self {
        Self::default()
    }

    jobqueue_storage::setters! {
        /// Sets the age at which finished batches are removed, counted from the last change in them. The age
        /// must be longer than a message can stay in a queue, including delays and redeliveries: 8 days are
        /// enough, unless jobs are sent with longer delays.
        ///
        /// A dead letter can still be redriven after that. If its job has sent the batch, the job does not
        /// send it again.
        finished(age: Duration) => finished;

        /// Also removes unfinished batches in which nothing has happened for this time. Their remaining jobs
        /// still run, but end no child; jobs on a worker that has cached the batch may leave blobs, which a
        /// later sweep removes. A job that had sent such a batch and is redriven cannot send it again for a
        /// year: the start is refused as a conflict.
        abandoned(age: Duration) => abandoned;
    }
}

/// Removes the blobs of old batches and returns the number of removed batches. The sweep can run on any
/// machine and can be interrupted. Two concurrent sweeps may both count a batch that both remove. A sweep
/// deletes up to 32 blobs concurrently.
///
/// The blobs of a batch stay for a while after its continuation, so that late copies of its messages are
/// recognised. A blob of some hundred bytes stays for a year, in which no other batch can begin under the id.
/// Run this once a day, for instance on a schedule; [`sweep`](crate::maintenance::sweep) does not remove
/// batches.
///
/// # Errors
/// [`Storage`](crate::ErrorKind::Storage) if the batches cannot be listed, or if some of them cannot be
/// removed. The other batches are removed nevertheless, and the next call removes the rest.
///
/// # Cancel safety
/// If the future is dropped, a batch may be half removed; the next call removes the rest.
pub async fn sweep_batches(storage: &Storage, options: BatchSweepOptions) -> Result<u64, Error> {
    let mut batches: BTreeMap<String, ListedBatch> = BTreeMap::new();
    let listed = for_each_blob(storage, "", |name, properties| {
        let Some((id, rest)) = batch_of(name) else { return };
        let found = batches.entry(id.to_owned()).or_default();
        found.newest = found.newest.max(Some(properties.modified));
        found.is_done |= rest == "done";
    })
    .await?;
    for_each_blob_in(storage, &tombstones()?, "", |id, properties| {
        if BatchId::new(id).is_ok() {
            batches.entry(id.to_owned()).or_default().swept = Some(properties.modified);
        }
    })
    .await?;
    let now = listed.unwrap_or_else(|| storage.runtime().now());
    let is_older = |at: Option<SystemTime>, age| {
        at.is_some_and(|at| now.duration_since(at).is_ok_and(|passed| passed > age))
    };
    batches.retain(|_, found| {
        if found.newest.is_none() {
            return is_older(found.swept, TOMBSTONE_LIFE);
        }
        // The rest of a batch whose removal was interrupted is removed like a finished batch.
        let unfinished = options.abandoned.or(found.swept.map(|_| options.finished));
        let age = if found.is_done { Some(options.finished) } else { unfinished };
        age.is_some_and(|age| is_older(found.newest, age))
    });
    let deletions = Semaphore::new(CONCURRENT_DELETIONS);
    let removals = batches.into_iter().map(|(id, found)| remove(storage, id, found, &deletions));
    let mut removals = stream::iter(removals).buffer_unordered(CONCURRENT_BATCHES);
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
struct ListedBatch {
    /// True if the continuation has run.
    is_done: bool,
    /// The time of the last change of the batch; `None` if only its tombstone exists.
    newest: Option<SystemTime>,
    /// The time at which the tombstone was written.
    swept: Option<SystemTime>,
}

/// The record that a sweep leaves of a batch, so that the id is not used again.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Tombstone {
    /// The [digest](job_digest) of the job that sent the batch, if the batch had ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    job: Option<String>,
    children: u64,
}

/// Returns a digest of the identity of a job.
pub(super) fn job_digest(job: &JobInfo) -> String {
    to_hex(&Sha256::digest(format!("{} {}", job.source, job.id))[..16])
}

impl Ledger<'_> {
    /// Returns the number of children of the batch if the batch was swept.
    ///
    /// # Errors
    /// [`Conflict`](ErrorKind::Conflict) if the batch was swept, and `job` has not sent it.
    pub(super) async fn swept(&self, job: Option<&JobInfo>) -> Result<Option<u64>, Error> {
        let Some(swept) = self.read::<Tombstone>(&self.id.tombstone()?).await? else { return Ok(None) };
        if swept.job.is_some() && swept.job == job.map(job_digest) {
            return Ok(Some(swept.children));
        }
        let text = format!(
            "the id `{}` is that of a batch that was swept; give each batch an id of its own",
            self.id.as_str()
        );
        Err(Error::new(ErrorKind::Conflict, text))
    }

    /// Returns whether the batch was swept, or is being swept.
    pub(super) async fn is_swept(&self) -> Result<bool, Error> {
        Ok(self.read::<Tombstone>(&self.id.tombstone()?).await?.is_some())
    }

    /// Returns the error of a start that read the batch before a sweep removed it. The next start reads the
    /// tombstone.
    pub(super) fn swept_during_start(&self) -> Error {
        let text = format!("the batch `{}` was swept while it was started again", self.id.as_str());
        Error::new(ErrorKind::Conflict, text).with_retryable(true)
    }

    /// Returns the tombstone for a batch that is about to be swept.
    async fn tombstone(&self, is_done: bool) -> Result<Tombstone, Error> {
        let plan = match self.plan().await {
            Err(error) if error.kind() == ErrorKind::Undecodable => None,
            plan => plan?.filter(|_| is_done),
        };
        Ok(plan.map(|plan| Tombstone { job: plan.job, children: plan.children }).unwrap_or_default())
    }
}

/// Deletes the blobs of a batch page by page, after it has written the tombstone. Returns the number of
/// removed batches: 0 if only a tombstone was left, or if a blob was written after the batch was listed. Such
/// a batch is active again, although its first pages may be gone.
async fn remove(
    storage: &Storage,
    id: String,
    found: ListedBatch,
    deletions: &Semaphore,
) -> Result<u64, Error> {
    let ledger = Ledger::new(storage, BatchId::new(&id)?);
    let (ledger, prefix, swept) = (&ledger, format!("{id}/"), &ledger.id.tombstone()?);
    let Some(newest) = found.newest else {
        ledger.remove(swept).await?;
        return Ok(0);
    };
    let tombstone = ledger.tombstone(found.is_done).await?;
    let is_newer = |blob: &BlobProperties| blob.modified > newest;
    let mut is_active = false;
    for_each_blob(storage, &prefix, |_, blob| is_active |= is_newer(blob)).await?;
    if is_active {
        return Ok(0);
    }
    let (container, mut has_tombstone) = (container()?, false);
    let mut pages = BlobPages::new(&**storage.blobs(), &container, &prefix);
    while let Some(BlobListing { blobs, .. }) = pages.next(Some(tries(storage))).await? {
        // The removal of many blobs takes minutes, in which the program may have resumed the batch.
        if blobs.iter().any(|(_, blob)| is_newer(blob)) {
            if has_tombstone {
                crate::log::warn!(batch = %id, "the batch was resumed during its sweep: some of its blobs are gone, it may never end, and no job can send it again");
            }
            return Ok(0);
        }
        if !has_tombstone {
            // From now on no batch begins under the id. An earlier sweep that was interrupted may have
            // written the tombstone.
            ledger.create(swept, &tombstone).await?;
            // Delete the plan first: a partly swept batch without a plan cannot continue.
            ledger.remove(&ledger.id.blob("plan")?).await?;
            has_tombstone = true;
        }
        let delete = async |(name, _): (String, BlobProperties)| {
            let blob = BlobName::new(container.clone(), name)?;
            let _permit = deletions.acquire().await;
            ledger.remove(&blob).await
        };
        stream::iter(blobs.into_iter().map(Ok)).try_for_each_concurrent(CONCURRENT_DELETIONS, delete).await?;
    }
    Ok(1)
}
