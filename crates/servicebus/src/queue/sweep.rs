//! Removes texts that crashes have left behind in the blobs: of messages that are gone, and of dead letters that did not come
//! about.

use std::collections::HashSet;
use std::collections::btree_map::{BTreeMap, Entry};
use std::time::SystemTime;

use super::super::error::Fault;
use super::super::held::Held;
use super::super::texts::{Beside, named};
use super::ServiceBusQueues;
use super::manage::Pages;
use super::message::is_of_partition;
use jobqueue_storage::{
    BlobProperties, QueueName, StoreError, StoreErrorKind as Kind, SweepLeftovers, SweptLeftovers, log,
};

/// The most times that a queue is read whose link says that it was deleted.
const TRIES: u32 = 3;

pub(super) async fn sweep(
    queues: &ServiceBusQueues,
    leftovers: SweepLeftovers,
) -> Result<SweptLeftovers, StoreError> {
    let mut swept = SweptLeftovers::default();
    let container = named("x")?.container().clone();
    let mut known = BTreeMap::new();
    for kind in ["texts", "letters"] {
        let folder = queues.beside.folder(kind);
        let mut marker: Option<String> = None;
        loop {
            let page = match queues.beside.blobs.list_blobs(&container, &folder, marker.as_deref()).await {
                Err(error) if error.kind() == Kind::ContainerNotFound => return Ok(swept),
                page => page?,
            };
            swept.seen += page.blobs.len() as u64;
            for (queue, blobs) in old_by_queue(page.blobs, &folder, leftovers.older_than) {
                let used = match known.entry(queue) {
                    Entry::Vacant(entry) => {
                        let used = in_use(queues, entry.key()).await.unwrap_or_else(|error| {
                            log::warn!(queue = %entry.key(), %error, "the texts of a queue are not swept");
                            // Without the claim Manage texts stay, which is no failure.
                            swept.failed += if error.is_unauthorized() { 0 } else { blobs.len() as u64 };
                            None
                        });
                        entry.insert(used)
                    }
                    Entry::Occupied(entry) => entry.into_mut(),
                };
                let Some(used) =
                    used.as_ref().filter(|_| !is_any_of_partition(blobs.iter().map(|(name, _)| name)))
                else {
                    continue;
                };
                for (name, bytes) in blobs.into_iter().filter(|(name, _)| !used.contains(name)) {
                    if leftovers.limit.is_some_and(|limit| swept.removed >= limit) {
                        return Ok(swept);
                    }
                    remove(queues, &name, bytes, leftovers.dry_run, &mut swept).await?;
                }
            }
            match page.next {
                Some(next) => marker = Some(next),
                None => break,
            }
        }
    }
    Ok(swept)
}

fn old_by_queue(
    blobs: Vec<(String, BlobProperties)>,
    folder: &str,
    older_than: SystemTime,
) -> BTreeMap<QueueName, Vec<(String, u64)>> {
    let mut old = BTreeMap::<_, Vec<_>>::new();
    for (name, properties) in blobs.into_iter().filter(|(_, properties)| properties.modified < older_than) {
        let of_queue = name.strip_prefix(folder).and_then(|rest| rest.split('/').next());
        if let Some(queue) = of_queue.and_then(|queue| QueueName::new(queue).ok()) {
            old.entry(queue).or_default().push((name, properties.length));
        }
    }
    old
}

/// Returns the blobs that messages of a queue and its dead letters may need. The dead letters are read last: messages move
/// there from the queue, and never back. `None` if the queue has, or may have, partitions: a peek returns the messages of any one of
/// them and counts within it, so that no walk through such a queue is known to meet all messages.
async fn in_use(queues: &ServiceBusQueues, queue: &QueueName) -> Result<Option<HashSet<String>>, Fault> {
    match queues.describe(queue).await? {
        None => return Ok(Some(HashSet::new())),
        Some(description) if description.is_partitioned => return Ok(None),
        Some(_) => {}
    }
    let mut used = HashSet::new();
    for queue in [Some(queue.clone()), queue.dead_letter().ok()].into_iter().flatten() {
        let mut tries = TRIES;
        loop {
            tries -= 1;
            let read = match queues.node(&queue).await {
                Ok(node) => {
                    let pages = Pages::of(node).in_background();
                    read_in_use(&queues.beside, pages, &queue, &mut used).await
                }
                Err(fault) => Err(fault),
            };
            match read {
                Ok(true) => break,
                Ok(false) => {
                    log::warn!(%queue, "the texts of a queue are not swept, because a message cannot be decoded that may need one");
                    return Ok(None);
                }
                // The link of a queue that was deleted says so; there may be another one of that name by now.
                Err(fault) if fault.is_missing_entity() && tries > 0 => {}
                Err(fault) => return Err(fault),
            }
        }
    }
    Ok(Some(used).filter(|used| !is_any_of_partition(used)))
}

fn is_any_of_partition<'n>(names: impl IntoIterator<Item = &'n String>) -> bool {
    let sequence = |name: &'n String| name.split(['/', '-']).rev().nth(1)?.parse::<i64>().ok();
    names.into_iter().filter_map(sequence).any(is_of_partition)
}

/// Adds the blobs that the messages of a queue may need; false if a message cannot be decoded.
async fn read_in_use(
    beside: &Beside,
    mut pages: Pages,
    queue: &QueueName,
    used: &mut HashSet<String>,
) -> Result<bool, Fault> {
    loop {
        let page = pages.next().await?;
        if page.is_empty() || page.iter().any(|content| !content.is_whole) {
            return Ok(page.is_empty());
        }
        for content in &page {
            let names = beside.names_of(&Held::of(queue, content, SystemTime::UNIX_EPOCH));
            used.extend(names.map(|name| name.name().to_owned()));
        }
    }
}

async fn remove(
    queues: &ServiceBusQueues,
    name: &str,
    bytes: u64,
    is_dry: bool,
    swept: &mut SweptLeftovers,
) -> Result<(), StoreError> {
    if !is_dry
        && let Err(error) = queues.beside.blobs.delete_blob(&named(name)?, None).await
        && error.kind() != Kind::BlobNotFound
    {
        log::debug!(%error, "the text of a deleted message was not removed");
        swept.failed += 1;
        return Ok(());
    }
    swept.removed += 1;
    swept.bytes += bytes;
    Ok(())
}
