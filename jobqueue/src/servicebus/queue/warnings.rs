//! Warns of settings of a queue that contradict those of the framework.

use std::time::Duration;

use super::super::entity::Description;
use super::super::texts::Beside;
use crate::name::QueueName;
use crate::settings::metadata::Metadata;
use crate::settings::{MAX_DELIVERIES, POISON_THRESHOLD};

/// Renewals of a shorter lock come too often, and one lost answer loses it.
const SHORTEST_LOCK: Duration = Duration::from_secs(15);

/// Writes a warning to the log for each setting that contradicts the framework, and a note for one that it could use, with what
/// to change.
pub(super) async fn check(beside: &Beside, queue: &QueueName, description: &Description) {
    if let Some(lock) = description.lock_duration.filter(|lock| *lock < SHORTEST_LOCK) {
        tracing::warn!(
            %queue,
            lock_seconds = lock.as_secs(),
            "the locks of this queue are so short that one late renewal loses a job: set LockDuration to PT1M"
        );
    }
    if !description.detects_duplicates {
        tracing::info!(
            %queue,
            "a send that is repeated after a lost answer may be two jobs: make the queue with RequiresDuplicateDetection"
        );
    }
    if description.requires_session {
        tracing::info!(
            %queue,
            "the queue requires sessions: jobs that are sent in order run by them, and every other job has a session of its own, \
             which costs more than one in a queue without sessions"
        );
    }
    let metadata = beside.metadata(queue).await.ok().flatten().unwrap_or_default();
    let bound = max_deliveries(&metadata);
    if let Some(count) = description.max_delivery_count.filter(|count| *count <= bound) {
        tracing::warn!(
            %queue,
            max_delivery_count = count,
            maxdeliveries = bound,
            "Service Bus moves messages to its own dead-letter queue before the framework does, without a reason and \
             unseen by it: set MaxDeliveryCount above maxdeliveries, to 2000"
        );
    }
}

/// Returns the number of deliveries after which the framework dead-letters a message.
fn max_deliveries(metadata: &Metadata) -> u32 {
    let read = |name: &str| metadata.get(name).and_then(|value| value.trim().parse::<u32>().ok());
    let by_threshold = |threshold: u32| threshold.saturating_mul(4).saturating_add(20);
    read(MAX_DELIVERIES).unwrap_or_else(|| by_threshold(read(POISON_THRESHOLD).unwrap_or(5)))
}
