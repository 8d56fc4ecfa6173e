//! Compares the settings of a queue with the framework's.

use std::time::Duration;

use super::super::entity::Description;
use super::super::place::Place;
use super::super::texts::QueueBlobs;
use super::ServiceBusQueues;
use jobqueue_storage::{Advice, Metadata, Operation, QueueName, StoreError, log};

/// A shorter lock is renewed too often, and a single lost answer loses it.
const MIN_LOCK_LENGTH: Duration = Duration::from_secs(15);

/// A queue with a shorter time to live, or a shorter idle time, may lose a job. The service's maximum, which
/// stands for "never", is 29,000 years.
const ALMOST_FOREVER: Duration = Duration::from_secs(3650 * 86_400);

/// The fill level, in percent of its maximum size, from which a queue is reported.
const NEARLY_FULL_PERCENT: u64 = 80;

/// Returns the settings of a queue that should be changed; empty without the claim Manage, or for a missing
/// queue.
pub(super) async fn advice(queues: &ServiceBusQueues, queue: &QueueName) -> Result<Vec<Advice>, StoreError> {
    read_advice(queues, queue).await.map(Option::unwrap_or_default)
}

/// Like [`advice`], but returns `None` without the claim Manage, or for a missing queue.
async fn read_advice(
    queues: &ServiceBusQueues,
    queue: &QueueName,
) -> Result<Option<Vec<Advice>>, StoreError> {
    if Place::of(queue).is_dead_letters {
        return Ok(None);
    }
    match queues.describe(queue).await {
        Ok(Some(description)) => {
            queues.facts(queue, |facts| facts.lock_length = description.lock_duration);
            Ok(Some(advice_for(&queues.queue_blobs, queue, &description).await))
        }
        Ok(None) => Ok(None),
        Err(fault) if fault.is_unauthorized() => Ok(None),
        Err(fault) => Err(fault.of_read(Operation::QueueProperties.as_str(), queue)),
    }
}

/// Logs the settings of a queue that should be changed. Returns `false` if they could not be read.
pub(super) async fn log_advice(queues: &ServiceBusQueues, queue: &QueueName) -> bool {
    let Ok(Some(all)) = read_advice(queues, queue).await else { return false };
    for Advice { is_warning, text, .. } in all {
        if is_warning {
            log::warn!(%queue, "{text}");
        } else {
            log::info!(%queue, "{text}");
        }
    }
    true
}

async fn advice_for(queue_blobs: &QueueBlobs, queue: &QueueName, description: &Description) -> Vec<Advice> {
    let mut all = Vec::new();
    if let Some(lock) = description.lock_duration.filter(|lock| *lock < MIN_LOCK_LENGTH) {
        all.push(Advice::warning(format!(
            "the locks of this queue last only {} s, and one late renewal loses a job: set LockDuration to PT1M",
            lock.as_secs()
        )));
    }
    let metadata = queue_blobs.metadata(queue).await.ok().flatten().unwrap_or_default();
    let bound = max_deliveries(&metadata);
    if let Some(count) = description.max_delivery_count.filter(|count| *count <= bound) {
        all.push(Advice::warning(format!(
            "Service Bus moves messages to its own dead-letter queue after {count} deliveries, before the framework does after {bound}, without a reason \
             and unseen by it: set MaxDeliveryCount above maxdeliveries, to 2000"
        )));
    }
    all.extend(refused_sends(description));
    all.extend(losses(description));
    if !description.detects_duplicates {
        all.push(Advice::note(
            "a send repeated after a lost answer may store two jobs: recreate the queue with RequiresDuplicateDetection",
        ));
    }
    if description.requires_session {
        all.push(Advice::note(
            "the queue requires sessions: jobs that are sent in order run by them, and every other job has a session of its own, \
             which costs more than one in a queue without sessions",
        ));
    }
    all
}

/// Returns advice on a queue that refuses sends, or soon will.
fn refused_sends(description: &Description) -> Vec<Advice> {
    let mut all = Vec::new();
    if let Some(status) = &description.inactive_status {
        all.push(Advice::warning(format!(
            "the service does not take or deliver all messages of this queue: its Status is {status}, set it to Active"
        )));
    }
    let max = description.max_megabytes.map(|megabytes| megabytes.saturating_mul(1 << 20));
    if let (Some(size), Some(max)) = (description.size, max)
        && size >= max / 100 * NEARLY_FULL_PERCENT
    {
        all.push(Advice::warning(format!(
            "the messages and dead letters of this queue take {size} of {max} bytes; when they take all, it refuses every send: raise MaxSizeInMegabytes, \
             or complete jobs and purge dead letters"
        )));
    }
    all
}

/// Returns advice on settings by which the service removes or moves messages before they are handled.
fn losses(description: &Description) -> Vec<Advice> {
    let mut all = Vec::new();
    if let Some(life) = description.time_to_live.filter(|life| *life < ALMOST_FOREVER) {
        let end = if description.dead_letters_expired {
            "dead-letters them"
        } else {
            "deletes them without a word, because DeadLetteringOnMessageExpiration is off"
        };
        all.push(Advice::warning(format!(
            "jobs that wait longer than {} s do not run, because the service {end}: set DefaultMessageTimeToLive to its maximum",
            life.as_secs()
        )));
    }
    if let Some(idle) = description.deleted_when_idle.filter(|idle| *idle < ALMOST_FOREVER) {
        all.push(Advice::warning(format!(
            "the service deletes this queue, with its jobs and dead letters, after {} s without use: set AutoDeleteOnIdle to its maximum",
            idle.as_secs()
        )));
    }
    if description.forwards {
        all.push(Advice::warning(
            "the service moves each message of this queue to another entity, and no worker of the queue receives it: remove ForwardTo",
        ));
    }
    if description.forwards_dead_letters {
        all.push(Advice::warning(
            "the service moves each dead letter of this queue to another entity, where it can be neither listed nor redriven, and its text in the blobs \
             is swept: remove ForwardDeadLetteredMessagesTo",
        ));
    }
    if description.is_express {
        all.push(Advice::warning(
            "the service keeps messages of this queue in memory before it stores them, and loses them with a node that fails: \
             set EnableExpress to false",
        ));
    }
    if description.is_partitioned {
        all.push(Advice::warning(
            "the queue is partitioned: a job that is put back may run twice, orphaned texts are never swept, and messages come in no order: \
             recreate it with EnablePartitioning off, in a namespace without partitions",
        ));
    }
    all
}

/// Returns the number of deliveries after which the framework dead-letters a message.
fn max_deliveries(metadata: &Metadata) -> u32 {
    let read = |name: &str| metadata.get(name).and_then(|value| value.trim().parse::<u32>().ok());
    let by_threshold = |threshold: u32| threshold.saturating_mul(4).saturating_add(20);
    read(Metadata::MAX_DELIVERIES)
        .unwrap_or_else(|| by_threshold(read(Metadata::POISON_THRESHOLD).unwrap_or(5)))
}
