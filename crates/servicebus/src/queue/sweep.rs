//! Deletes texts that crashes have left in the blobs after their messages were gone. Sweeps one queue at a
//! time, so that only its own blob names are in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::time::SystemTime;

use super::super::error::Fault;
use super::super::held::HeldMessage;
use super::super::texts::{QueueBlobs, blob_name, container};
use super::ServiceBusQueues;
use super::manage::Pages;
use super::message::is_of_partition;
use jobqueue_storage::{
    BlobPages, QueueName, StoreError, StoreErrorKind as Kind, SweepLeftovers, SweptLeftovers, log,
};

/// The most times that a queue is read while its link reports that it was deleted.
const MAX_READS: u32 = 3;

pub(super) async fn sweep(
    queues: &ServiceBusQueues,
    leftovers: SweepLeftovers,
) -> Result<SweptLeftovers, StoreError> {
    let mut swept = SweptLeftovers::default();
    let mut with_old = BTreeSet::new();
    let folder = queues.queue_blobs.texts();
    list(queues, &folder, |name, modified, _| {
        swept.seen += 1;
        let queue = name
            .strip_prefix(&folder)
            .and_then(|rest| rest.split('/').next())
            .filter(|_| modified < leftovers.older_than);
        with_old.extend(queue.and_then(|queue| QueueName::new(queue).ok()));
    })
    .await?;
    for queue in with_old {
        if leftovers.is_over(swept.removed) {
            break;
        }
        let mut blobs = old_of(queues, &queue, leftovers.older_than).await?;
        let of_queue = blobs.len() as u64;
        // A long queue takes long to read.
        let read = leftovers.stop.run_until_cancelled(keep_unused(queues, &queue, &mut blobs)).await;
        let Some(read) = read else { break };
        let is_read = read.unwrap_or_else(|error| {
            log::warn!(%queue, %error, "the texts of a queue are not swept");
            // Without the claim Manage the texts stay, which is not a failure.
            swept.failed += if error.is_unauthorized() { 0 } else { of_queue };
            false
        });
        for (name, bytes) in blobs.into_iter().filter(|_| is_read) {
            if leftovers.is_over(swept.removed) {
                return Ok(swept);
            }
            remove(queues, &name, bytes, leftovers.dry_run, &mut swept).await?;
        }
    }
    Ok(swept)
}

/// Blob names and lengths in bytes.
type Blobs = BTreeMap<String, u64>;

async fn old_of(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    older_than: SystemTime,
) -> Result<Blobs, StoreError> {
    let mut old = Blobs::new();
    let folder = format!("{}{queue}/", queues.queue_blobs.texts());
    list(queues, &folder, |name, modified, length| {
        if modified < older_than {
            old.insert(name, length);
        }
    })
    .await?;
    Ok(old)
}

/// Calls `found` with the name, modification time and length of each blob whose name begins with `prefix`.
async fn list(
    queues: &ServiceBusQueues,
    prefix: &str,
    mut found: impl FnMut(String, SystemTime, u64),
) -> Result<(), StoreError> {
    let container = container()?;
    let mut pages = BlobPages::new(&*queues.queue_blobs.blobs, &container, prefix);
    while let Some(page) = pages.next(None).await? {
        for (name, blob) in page.blobs {
            found(name, blob.modified, blob.length);
        }
    }
    Ok(())
}

/// Leaves in `blobs` only those that no message and no dead letter of the queue may need. Dead letters are
/// read last, because messages move there from the queue, and never back.
///
/// Returns `false` if that cannot be determined, because a message cannot be decoded, or the queue has, or
/// may have, partitions: a peek returns the messages of one partition, and counts within it, so no walk
/// through such a queue is known to see all messages.
async fn keep_unused(queues: &ServiceBusQueues, queue: &QueueName, blobs: &mut Blobs) -> Result<bool, Fault> {
    match queues.describe(queue).await? {
        None => return Ok(!is_any_of_partition(blobs)),
        Some(description) if description.is_partitioned => return Ok(false),
        Some(_) => {}
    }
    for queue in [Some(queue.clone()), queue.dead_letter().ok()].into_iter().flatten() {
        let mut tries = MAX_READS;
        loop {
            tries -= 1;
            let read = match queues.node(&queue).await {
                Ok(node) => {
                    remove_used(&queues.queue_blobs, Pages::of(node).in_background(), &queue, blobs).await
                }
                Err(fault) => Err(fault),
            };
            match read {
                Ok(true) => break,
                Ok(false) => {
                    log::warn!(%queue, "the texts of a queue are not swept, because a message that may need one cannot be decoded or belongs to a partition");
                    return Ok(false);
                }
                // The link of a deleted queue reports that; a new queue of that name may exist by now.
                Err(fault) if fault.is_missing_entity() && tries > 0 => {}
                Err(fault) => return Err(fault),
            }
        }
    }
    Ok(!is_any_of_partition(blobs))
}

fn is_any_of_partition(blobs: &Blobs) -> bool {
    let sequence = |name: &String| name.split(['/', '-']).rev().nth(1)?.parse::<i64>().ok();
    blobs.keys().filter_map(sequence).any(is_of_partition)
}

/// Removes from `blobs` the names that the messages of a queue may need. Returns `false` if a message cannot
/// be decoded, or belongs to a partition.
async fn remove_used(
    queue_blobs: &QueueBlobs,
    mut pages: Pages,
    queue: &QueueName,
    blobs: &mut Blobs,
) -> Result<bool, Fault> {
    loop {
        let page = pages.next().await?;
        for content in &page {
            let is_of_partition =
                content.first_sequence.into_iter().chain([content.sequence]).any(is_of_partition);
            if !content.is_whole || is_of_partition {
                return Ok(false);
            }
            for name in queue_blobs.names_of(&HeldMessage::of(queue, content, SystemTime::UNIX_EPOCH)) {
                blobs.remove(name.name());
            }
        }
        if page.is_empty() {
            return Ok(true);
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
        && let Err(error) = queues.queue_blobs.blobs.delete_blob(&blob_name(name)?, None).await
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
