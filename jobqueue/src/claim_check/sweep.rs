//! The sweep: removes blobs that no message can need any more.
//!
//! A sweep compares times by the storage's clock only, and never decides by age alone. It removes a blob
//! after the time in its metadata, because no message that refers to the blob can exist then; where the
//! storage itself makes dead letters, which outlive their time, only if the queue and its dead-letter queue
//! are empty. It removes a blob with the time `never` only on request, and only if both are empty; the count
//! of a queue is never 0 while the queue has messages. A queue that the storage does not have is not empty:
//! the blobs may be lent to the storage that has it.

use std::collections::HashMap;
use std::iter;
use std::time::{Duration, SystemTime};

use futures_util::{StreamExt, stream};

use super::CONTAINER;
use super::sweep_options::{SweepOptions, SweepReport};
use crate::error::Error;
use crate::sharded::MAPS;
use crate::storage::{
    BlobName, BlobPages, BlobProperties, ContainerName, EXPIRES, LeaseId, NEVER, QueueName, Storage,
    StoreError, StoreErrorKind, SweepLeftovers, Tries, delete_if_same, needed_at_most_until,
};

/// The minimum age of a blob without expiry: a message may be on its way for as long as it can be invisible
/// (7 days).
const MIN_AGE_WITHOUT_EXPIRY: Duration = Duration::from_secs(8 * 86_400);
/// The number of blobs that are removed concurrently.
const CONCURRENT_REMOVALS: usize = 32;
/// The number of removals that fail in a row, because the storage throttles or cannot be reached, after which
/// a sweep ends: each may take half a minute, and a page has 5,000 blobs.
const MAX_FAILURES: usize = 3 * CONCURRENT_REMOVALS;
/// The number of times that a listing is requested again if the storage could not serve it.
const RESENDS: u32 = 4;

/// A container whose blobs have metadata that says when they are no longer needed. The module that writes the
/// blobs declares the container; the crate root passes all containers to a sweep.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SweptContainer {
    name: &'static str,
    /// True if a blob may be written again with a later expiry, even between its listing and its removal.
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

/// Sweeps `containers`. A container that does not exist counts as empty.
pub(crate) async fn sweep_containers(
    storage: &Storage,
    containers: &[SweptContainer],
    options: SweepOptions,
) -> Result<SweepReport, Error> {
    let mut sweep = Sweep { storage, now: storage.runtime().now(), checked: HashMap::new(), options };
    let mut swept = SweepReport::default();
    match sweep.all(containers, &mut swept).await {
        Ok(()) => Ok(swept),
        Err(error) if swept.removed == 0 || sweep.options.dry_run => Err(error),
        Err(error) => {
            let SweepReport { seen, removed, bytes, .. } = swept;
            let text =
                format!("the sweep ended early: {removed} of {seen} blobs were removed ({bytes} bytes)");
            Err(Error::new(error.kind(), text).with_retryable(error.is_retryable()).with_source(error))
        }
    }
}

struct Sweep<'a> {
    storage: &'a Storage,
    options: SweepOptions,
    /// The storage's time at the latest listing; the time of this process before the first listing, or if the
    /// storage returns no time.
    now: SystemTime,
    /// The queues that were checked. An entry holds for the whole sweep, because no new message refers to a
    /// blob that is old enough to be swept.
    checked: HashMap<QueueName, QueueUse>,
}

/// The use of a queue: the payloads of a drained one are garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QueueUse {
    Drained,
    /// The queue or its dead-letter queue has messages, or cannot be counted.
    InUse,
    /// This storage has no such queue. The queue was deleted, or another storage with the same blobs has it.
    Missing,
}

impl Sweep<'_> {
    async fn all(&mut self, containers: &[SweptContainer], swept: &mut SweepReport) -> Result<(), Error> {
        for container in containers {
            self.container(*container, swept).await?;
        }
        self.leftovers(swept).await
    }

    async fn container(
        &mut self,
        swept_container: SweptContainer,
        swept: &mut SweepReport,
    ) -> Result<(), Error> {
        let container = &ContainerName::new(swept_container.name)?;
        let storage = self.storage;
        let mut pages = BlobPages::new(&**storage.blobs(), container, "");
        while !self.is_full(swept)
            && let Some(page) = pages.next(Some(tries(storage, RESENDS))).await?
        {
            if page.blobs.is_empty() {
                continue;
            }
            self.now = page.now.unwrap_or(self.now);
            let mut garbage = Vec::new();
            for (name, properties) in page.blobs {
                swept.seen += 1;
                if self.is_garbage(container, &name, &properties, swept).await? {
                    garbage.push((BlobName::new(container.clone(), name)?, properties));
                }
            }
            let removed = self.remove_all(swept_container, garbage, swept).await;
            if let Some(listener) = &self.options.progress {
                listener(swept);
            }
            removed?;
        }
        Ok(())
    }

    /// Removes blobs concurrently until the limit is reached or the sweep is stopped. Removals that have
    /// begun by then come to their end.
    ///
    /// # Errors
    /// The last of [`MAX_FAILURES`] failures in a row.
    async fn remove_all(
        &self,
        container: SweptContainer,
        garbage: Vec<(BlobName, BlobProperties)>,
        swept: &mut SweepReport,
    ) -> Result<(), StoreError> {
        let (mut garbage, mut failures) = (garbage.into_iter(), 0);
        while !self.is_full(swept) && garbage.len() > 0 {
            let room = self.options.limit.map(|limit| limit - swept.removed);
            let room = room.and_then(|room| usize::try_from(room).ok()).unwrap_or(usize::MAX);
            let unless_stopped =
                iter::from_fn(|| garbage.next().filter(|_| !self.options.stop.is_cancelled()));
            let removals = unless_stopped.take(room).map(|(blob, properties)| async move {
                (self.remove(container, &blob, &properties).await, properties.length)
            });
            let mut removals = stream::iter(removals).buffer_unordered(CONCURRENT_REMOVALS);
            while let Some((removal, length)) = removals.next().await {
                let is_removed = match removal {
                    Err(error) => {
                        crate::log::debug!(%error, "removing a blob failed");
                        swept.failed += 1;
                        // An error of this blob alone, such as its lease, says nothing about the storage.
                        let is_outage = error.is_retryable() || error.is_ambiguous();
                        failures = if is_outage { failures + 1 } else { 0 };
                        if failures >= MAX_FAILURES {
                            return Err(error);
                        }
                        continue;
                    }
                    Ok(is_removed) => is_removed,
                };
                failures = 0;
                if is_removed {
                    swept.removed += 1;
                    swept.bytes += length;
                }
            }
        }
        Ok(())
    }

    /// Lets the adapter of the queues sweep its private data.
    async fn leftovers(&self, swept: &mut SweepReport) -> Result<(), Error> {
        let limit = self.options.limit.map(|limit| limit.saturating_sub(swept.removed));
        let Some(older_than) = self.now.checked_sub(self.options.grace).filter(|_| !self.is_full(swept))
        else {
            return Ok(());
        };
        let leftovers = SweepLeftovers::new(older_than)
            .with_dry_run(self.options.dry_run)
            .with_limit(limit)
            .with_stop(self.options.stop.clone());
        let more = self.storage.queues().sweep(leftovers).await?;
        swept.seen += more.seen;
        swept.removed += more.removed;
        swept.bytes += more.bytes;
        swept.failed += more.failed;
        Ok(())
    }

    fn is_full(&self, swept: &SweepReport) -> bool {
        self.options.stop.is_cancelled() || self.options.limit.is_some_and(|limit| swept.removed >= limit)
    }

    async fn is_garbage(
        &mut self,
        container: &ContainerName,
        name: &str,
        properties: &BlobProperties,
        swept: &mut SweepReport,
    ) -> Result<bool, StoreError> {
        // Only blobs with an expiry in their metadata are swept.
        let Some(expires) = properties.metadata.get(EXPIRES) else { return Ok(false) };
        if let Some(end) = needed_at_most_until(properties) {
            let is_over = end.checked_add(self.options.grace).is_some_and(|end| end < self.now);
            // A queue that is missing has no letters.
            return Ok(is_over
                && (!self.may_become_letters(container) || self.queue_use(name).await? != QueueUse::InUse));
        }
        let age = self.now.duration_since(properties.modified).unwrap_or_default();
        let is_selected = self.options.drained_queues && expires == NEVER && container.as_str() == CONTAINER;
        let min_age = MIN_AGE_WITHOUT_EXPIRY.max(self.options.grace);
        if !is_selected || age < min_age || self.options.stop.is_cancelled() {
            return Ok(false);
        }
        let queue_use = self.queue_use(name).await?;
        swept.without_queue += u64::from(queue_use == QueueUse::Missing);
        Ok(queue_use == QueueUse::Drained)
    }

    /// Returns whether the storage itself may have made a dead letter of an expired message, or may yet make
    /// one: such a letter has no copy of the blob, and does not expire. Service Bus may do so only when a
    /// program receives from the queue.
    fn may_become_letters(&self, container: &ContainerName) -> bool {
        container.as_str() == CONTAINER && self.storage.queues().powers().dead_letters.is_some()
    }

    /// Returns the use of the queue of a payload.
    async fn queue_use(&mut self, name: &str) -> Result<QueueUse, StoreError> {
        let queue = name.split('/').nth(1).and_then(|queue| QueueName::new(queue).ok());
        let Some(queue) = queue else { return Ok(QueueUse::InUse) };
        if let Some(queue_use) = self.checked.get(&queue) {
            return Ok(*queue_use);
        }
        let queue_use = match self.check(&queue).await {
            // The queue may have messages. The sweep continues with the other queues.
            Err(error) if !error.is_retryable() => {
                crate::log::warn!(%queue, %error, "the payloads of a queue that cannot be counted stay");
                QueueUse::InUse
            }
            checked => checked?,
        };
        if queue_use == QueueUse::Missing {
            crate::log::warn!(%queue, "there are payloads of a queue that the storage does not have");
        }
        self.checked.insert(queue, queue_use);
        Ok(queue_use)
    }

    /// Returns the use of a queue; it is drained if neither the queue nor its dead-letter queue has a
    /// message. Checks the queue before and after its dead-letter queue, so that a message that moves between
    /// them is seen.
    async fn check(&self, queue: &QueueName) -> Result<QueueUse, StoreError> {
        let mut is_missing = false;
        for name in [Some(queue), queue.dead_letter().ok().as_ref(), Some(queue)].into_iter().flatten() {
            if self.is_sharded(name).await? {
                return Ok(QueueUse::InUse);
            }
            match self.storage.queues().queue_properties(name).await {
                Ok(properties) if properties.approximate_count == 0 => {}
                Ok(_) => return Ok(QueueUse::InUse),
                // The first dead letter creates the dead-letter queue.
                Err(e) if e.kind() == StoreErrorKind::QueueNotFound => is_missing |= name == queue,
                Err(e) => return Err(e),
            }
        }
        Ok(if is_missing { QueueUse::Missing } else { QueueUse::Drained })
    }

    /// Returns whether messages of `queue` may be on shards, which this storage handle may not see.
    async fn is_sharded(&self, queue: &QueueName) -> Result<bool, StoreError> {
        let invalid =
            |e| StoreError::new(StoreErrorKind::InvalidInput, "name shard map", queue).with_source(e);
        let map =
            BlobName::new(ContainerName::new(MAPS).map_err(invalid)?, queue.as_str()).map_err(invalid)?;
        match self.storage.blobs().blob_properties(&map).await {
            Ok(_) => Ok(true),
            Err(e) if e.is_missing_blob() => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// Removes a blob; in a dry run, every blob counts as removed. Returns false if the blob was written
    /// again, with another expiry, after it was listed.
    async fn remove(
        &self,
        container: SweptContainer,
        blob: &BlobName,
        properties: &BlobProperties,
    ) -> Result<bool, StoreError> {
        if self.options.dry_run {
            Ok(true)
        } else if container.is_reused {
            delete_unchanged(self.storage, blob, properties).await
        } else {
            delete(self.storage, blob).await.map(|()| true)
        }
    }
}

/// Returns the attempts of a request, which is sent again up to `resends` times if the storage could not
/// serve it.
fn tries(storage: &Storage, resends: u32) -> Tries {
    Tries::brief(storage.runtime(), resends, resends)
}

async fn delete(storage: &Storage, blob: &BlobName) -> Result<(), StoreError> {
    match tries(storage, 0).run(|| storage.blobs().delete_blob(blob, None)).await {
        Err(error) if error.kind() == StoreErrorKind::BlobNotFound => Ok(()),
        deleted => deleted,
    }
}

/// Deletes a blob unless its metadata, and so its expiry, has changed since it was listed. Returns whether it
/// deleted the blob.
async fn delete_unchanged(
    storage: &Storage,
    blob: &BlobName,
    listed: &BlobProperties,
) -> Result<bool, StoreError> {
    let lease = LeaseId::random(storage.runtime());
    let is_same = |found: &BlobProperties| found.metadata == listed.metadata;
    delete_if_same(&**storage.blobs(), &**storage.leases()?, blob, lease, is_same).await
}
