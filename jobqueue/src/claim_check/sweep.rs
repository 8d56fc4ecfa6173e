//! The sweep: removes blobs that no message can need any more.
//!
//! A sweep never decides by age alone. It removes a blob after the time that was written into its metadata, because
//! no message that refers to it can exist then. It removes a blob with the time `never` only on request, and only if
//! its queue and its dead-letter queue are empty; their counts are never below the real number.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::{CONTAINER, EXPIRES};
use crate::error::Error;
use crate::sharded::MAPS;
use crate::storage::{BlobName, ContainerName, QueueName};
use crate::storage::{
    BlobProperties, BlobStore, LeaseDuration, LeaseId, Queues, Storage, StoreError, StoreErrorKind,
    SweepLeftovers,
};

/// The time that a blob is kept after its expiry: clocks differ, and a job that has just expired may still run.
const GRACE: Duration = Duration::from_secs(86_400);
/// The minimum age of a blob without expiry. A message may be on its way for as long as it can be invisible (7 days).
const HORIZON: Duration = Duration::from_secs(8 * 86_400);
/// A container whose blobs say in their metadata when they are no longer needed. The module that writes such blobs
/// declares it; the crate root passes all of them to a sweep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SweptContainer {
    name: &'static str,
    /// True if its blobs are written again with a later expiry, perhaps between being listed and being removed.
    is_reused: bool,
}

impl SweptContainer {
    /// Returns a container whose blobs are written once.
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, is_reused: false }
    }

    /// Returns a container whose blobs may be written again.
    pub(crate) const fn reused(name: &'static str) -> Self {
        Self { name, is_reused: true }
    }
}

pub(crate) const PAYLOADS: SweptContainer = SweptContainer::new(CONTAINER);

type Progress = dyn Fn(&SweepReport) + Send + Sync;

/// The options of a [`sweep`](crate::maintenance::sweep).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::maintenance::{SweepOptions, sweep};
/// use jobqueue::Storage;
///
/// let storage = Storage::memory();
/// // What would be removed, old payloads of queues that are empty now included; then at most 10,000 blobs of that.
/// let options = SweepOptions::new().drained_queues(true).limit(10_000);
/// let found = sweep(&storage, options.clone().dry_run(true)).await?;
/// println!("{} blobs of {} bytes", found.removed, found.bytes);
/// let swept = sweep(&storage, options).await?;
/// # assert_eq!((found.removed, swept.removed), (0, 0));
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct SweepOptions {
    grace: Duration,
    drained_queues: bool,
    dry_run: bool,
    limit: Option<u64>,
    progress: Option<Arc<Progress>>,
}

impl Default for SweepOptions {
    fn default() -> Self {
        Self { grace: GRACE, drained_queues: false, dry_run: false, limit: None, progress: None }
    }
}

impl SweepOptions {
    /// Selects blobs that expired at least a day ago, and no others.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how long a blob is kept after its expiry. The default is a day; set more if jobs with a time to live run
    /// longer than that. The minimum is an hour.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace.max(Duration::from_secs(3600));
        self
    }

    /// Also removes payloads of messages that never expire, if they are at least 8 days old (or the grace, if that is
    /// more) and both their queue and its dead-letter queue are empty, invisible messages included. The sweep leaves
    /// out queues that are spread over shards. The default is off.
    #[must_use]
    pub fn drained_queues(mut self, sweep: bool) -> Self {
        self.drained_queues = sweep;
        self
    }

    /// Only counts the blobs that would be removed. The default is off.
    #[must_use]
    pub fn dry_run(mut self, dry: bool) -> Self {
        self.dry_run = dry;
        self
    }

    /// Returns whether blobs are only counted.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Sets the maximum number of blobs to remove.
    #[must_use]
    pub fn limit(mut self, blobs: u64) -> Self {
        self.limit = Some(blobs);
        self
    }

    /// Calls `listener` after every page of up to 5,000 blobs.
    #[must_use]
    pub fn on_progress(mut self, listener: impl Fn(&SweepReport) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(listener));
        self
    }
}

impl fmt::Debug for SweepOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SweepOptions")
            .field("grace", &self.grace)
            .field("drained_queues", &self.drained_queues)
            .field("dry_run", &self.dry_run)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// The result of a sweep.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[must_use]
#[non_exhaustive]
pub struct SweepReport {
    /// The number of blobs that were examined.
    pub seen: u64,
    /// The number of blobs that were removed; in a dry run, that would be removed.
    pub removed: u64,
    /// The size of the removed blobs in bytes.
    pub bytes: u64,
    /// The number of blobs that should be removed and could not, because they are leased or the storage failed.
    pub failed: u64,
}

/// Sweeps `containers`. A container that does not exist counts as empty.
pub(crate) async fn sweep_containers(
    storage: &Storage,
    containers: &[SweptContainer],
    options: SweepOptions,
) -> Result<SweepReport, Error> {
    let mut sweep = Sweep { storage, now: storage.runtime().now(), drained: HashMap::new(), options };
    let mut swept = SweepReport::default();
    for container in containers {
        sweep.container(*container, &mut swept).await?;
    }
    sweep.leftovers(&mut swept).await?;
    Ok(swept)
}

struct Sweep<'a> {
    storage: &'a Storage,
    options: SweepOptions,
    now: SystemTime,
    /// The result for each queue of this page: true if it is drained.
    drained: HashMap<QueueName, bool>,
}

impl Sweep<'_> {
    async fn container(
        &mut self,
        swept_container: SweptContainer,
        swept: &mut SweepReport,
    ) -> Result<(), Error> {
        let container = &ContainerName::new(swept_container.name)?;
        let mut marker: Option<String> = None;
        while !self.is_full(swept) {
            let listing = self.storage.blobs().list_blobs(container, "", marker.as_deref()).await;
            let page = match listing {
                Ok(page) => page,
                Err(e) if e.kind() == StoreErrorKind::ContainerNotFound => return Ok(()),
                Err(e) => return Err(e.into()),
            };
            self.drained.clear();
            for (name, properties) in &page.blobs {
                if self.is_full(swept) {
                    break;
                }
                swept.seen += 1;
                if self.is_garbage(container, name, properties).await? {
                    match self.remove(swept_container, container, name, properties).await {
                        Some(true) => {
                            swept.removed += 1;
                            swept.bytes += properties.length;
                        }
                        Some(false) => {}
                        None => swept.failed += 1,
                    }
                }
            }
            if let Some(listener) = &self.options.progress {
                listener(swept);
            }
            match page.next {
                Some(next) => marker = Some(next),
                None => break,
            }
        }
        Ok(())
    }

    /// Lets the storage of the queues sweep its private data.
    async fn leftovers(&self, swept: &mut SweepReport) -> Result<(), Error> {
        let limit = self.options.limit.map(|limit| limit.saturating_sub(swept.removed));
        let Some(older_than) = self.now.checked_sub(self.options.grace).filter(|_| limit != Some(0)) else {
            return Ok(());
        };
        let leftovers = SweepLeftovers::new(older_than).with_dry_run(self.options.dry_run).with_limit(limit);
        let more = self.storage.queues().sweep(leftovers).await?;
        swept.seen += more.seen;
        swept.removed += more.removed;
        swept.bytes += more.bytes;
        swept.failed += more.failed;
        Ok(())
    }

    fn is_full(&self, swept: &SweepReport) -> bool {
        self.options.limit.is_some_and(|limit| swept.removed >= limit)
    }

    async fn is_garbage(
        &mut self,
        container: &ContainerName,
        name: &str,
        properties: &BlobProperties,
    ) -> Result<bool, StoreError> {
        // A blob without an expiry in its metadata is not ours to remove.
        let Some(expires) = properties.metadata.get(EXPIRES) else { return Ok(false) };
        if let Ok(seconds) = expires.parse::<u64>() {
            let end = Duration::from_secs(seconds).checked_add(self.options.grace);
            let end = end.and_then(|end| SystemTime::UNIX_EPOCH.checked_add(end));
            return Ok(end.is_some_and(|end| end < self.now));
        }
        let age = self.now.duration_since(properties.modified).unwrap_or_default();
        let asked = self.options.drained_queues && expires == "never" && container.as_str() == CONTAINER;
        if !asked || age < HORIZON.max(self.options.grace) {
            return Ok(false);
        }
        match name.split('/').nth(1).map(QueueName::new) {
            Some(Ok(queue)) => self.is_drained(&queue).await,
            _ => Ok(false),
        }
    }

    /// Returns whether no message of `queue` exists anywhere. Looks twice, so that it sees a message on its way
    /// between the two queues.
    async fn is_drained(&mut self, queue: &QueueName) -> Result<bool, StoreError> {
        if let Some(drained) = self.drained.get(queue) {
            return Ok(*drained);
        }
        let store = self.storage.queues();
        let dead_letter_queue = queue.dead_letter().ok();
        let mut drained = true;
        for queue in [Some(queue), dead_letter_queue.as_ref()].into_iter().flatten() {
            drained = drained && !self.is_sharded(queue).await?;
        }
        for _ in 0..2 {
            for queue in [Some(queue), dead_letter_queue.as_ref()].into_iter().flatten() {
                drained = drained && is_empty(store, queue).await?;
            }
        }
        self.drained.insert(queue.clone(), drained);
        Ok(drained)
    }

    /// Returns whether messages of `queue` may be on shards, which this storage handle may not see.
    async fn is_sharded(&self, queue: &QueueName) -> Result<bool, StoreError> {
        let invalid =
            |e| StoreError::new(StoreErrorKind::InvalidInput, "name shard map", queue).with_source(e);
        let map =
            BlobName::new(ContainerName::new(MAPS).map_err(invalid)?, queue.as_str()).map_err(invalid)?;
        match self.storage.blobs().blob_properties(&map).await {
            Ok(_) => Ok(true),
            Err(e)
                if matches!(e.kind(), StoreErrorKind::BlobNotFound | StoreErrorKind::ContainerNotFound) =>
            {
                Ok(false)
            }
            Err(e) => Err(e),
        }
    }

    /// Removes a blob. Returns false if it is needed again, `None` if it cannot be removed now.
    async fn remove(
        &self,
        swept_container: SweptContainer,
        container: &ContainerName,
        name: &str,
        properties: &BlobProperties,
    ) -> Option<bool> {
        let blobs = &**self.storage.blobs();
        if self.options.dry_run {
            Some(true)
        } else if swept_container.is_reused {
            delete_unchanged(self.storage, container, name, properties).await
        } else {
            delete(blobs, container, name).await.then_some(true)
        }
    }
}

async fn is_empty(store: &Queues, queue: &QueueName) -> Result<bool, StoreError> {
    match store.queue_properties(queue).await {
        Ok(properties) => Ok(properties.approximate_count == 0),
        Err(e) if e.kind() == StoreErrorKind::QueueNotFound => Ok(true),
        Err(e) => Err(e),
    }
}

async fn delete(blobs: &dyn BlobStore, container: &ContainerName, name: &str) -> bool {
    let Ok(blob) = BlobName::new(container.clone(), name) else { return false };
    match blobs.delete_blob(&blob, None).await {
        Ok(()) => true,
        Err(e) if e.kind() == StoreErrorKind::BlobNotFound => true,
        Err(error) => {
            tracing::debug!(%error, "removing a blob failed");
            false
        }
    }
}

/// Deletes a blob under a lease, provided that its expiry has not changed since it was listed. Returns `None` if that
/// is not possible now.
async fn delete_unchanged(
    storage: &Storage,
    container: &ContainerName,
    name: &str,
    listed: &BlobProperties,
) -> Option<bool> {
    let blob = BlobName::new(container.clone(), name).ok()?;
    let duration = LeaseDuration::Finite(Duration::from_secs(15));
    let (blobs, leases) = (storage.blobs(), storage.leases().ok()?);
    let lease = leases.acquire_lease(&blob, duration, &LeaseId::random(storage.runtime())).await.ok()?;
    let found = blobs.blob_properties(&blob).await.ok()?;
    let same = found.metadata.get(EXPIRES) == listed.metadata.get(EXPIRES);
    if same && blobs.delete_blob(&blob, Some(&lease)).await.is_ok() {
        return Some(true);
    }
    // If this fails, the lease expires.
    drop(leases.release_lease(&blob, &lease).await);
    (!same).then_some(false)
}
