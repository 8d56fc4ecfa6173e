//! Operations on whole queues.

use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use futures_util::future::join_all;

use super::super::amqp::requests::Node;
use super::super::error::Fault;
use super::super::place::Place;
use super::manage::{Pages, retry_while_busy};
use super::put::before_request;
use super::{ServiceBusQueues, count, manage};
use jobqueue_storage::rules::limits;
use jobqueue_storage::sync::lock;
use jobqueue_storage::{
    Access, Created, Metadata, MetadataStore, Operation, Permissions, QueueName, QueueProperties, StoreError,
    StoreErrorKind as Kind,
};

/// The maximum number of messages that a request deletes. The tier Standard allows no more.
const DELETE_BATCH_SIZE: i32 = 500;
/// A margin that is greater than the difference between the service's clock and this machine's.
const CLOCK_MARGIN: Duration = Duration::from_secs(86_400);

pub(super) async fn create(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    metadata: &Metadata,
) -> Result<Created, StoreError> {
    let operation = Operation::CreateQueue;
    limits::check_metadata(operation, queue, metadata)?;
    // The metadata are written first, so that a visible queue has them.
    let mut is_new = queues.queue_blobs.create_metadata(queue, metadata).await?;
    if !is_new && queues.queue_blobs.metadata(queue).await?.unwrap_or_default() != *metadata {
        if exists(queues, queue).await? {
            return Err(StoreError::new(Kind::QueueAlreadyExists, operation.as_str(), queue));
        }
        // The metadata are left over from a deleted queue.
        queues.queue_blobs.write_metadata(queue, metadata).await?;
        is_new = true;
    }
    if Place::of(queue).is_dead_letters {
        let is_there = exists(queues, queue).await?;
        return is_there.then_some(Created::Existed).ok_or_else(|| {
            StoreError::new(Kind::QueueNotFound, operation.as_str(), queue).with_detail(
                "Service Bus creates a dead-letter queue together with its queue; create the queue",
            )
        });
    }
    match queues.entities.create(queue.as_str()).await {
        Ok(true) => {
            if !is_new {
                // The deletion of an earlier queue of that name may be about to empty them.
                queues.queue_blobs.write_metadata(queue, metadata).await?;
            }
            Ok(Created::New)
        }
        Ok(false) => Ok(Created::Existed),
        Err(fault) => {
            let error = fault.of_change(operation.as_str(), queue);
            // A caller that may only use existing queues may be forbidden to create them.
            let is_refused = error.kind() == Kind::Unauthorized;
            if is_refused && exists(queues, queue).await? { Ok(Created::Existed) } else { Err(error) }
        }
    }
}

async fn exists(queues: &ServiceBusQueues, queue: &QueueName) -> Result<bool, StoreError> {
    let exists = queues.exists(queue).await;
    exists.map_err(|fault| fault.of_read(Operation::QueueProperties.as_str(), queue))
}

pub(super) async fn delete(queues: &ServiceBusQueues, queue: &QueueName) -> Result<(), StoreError> {
    let operation = Operation::DeleteQueue.as_str();
    if Place::of(queue).is_dead_letters {
        let error = StoreError::new(Kind::Unsupported, operation, queue);
        return Err(error.with_detail(
            "Service Bus deletes a dead-letter queue only together with its queue; purge it instead",
        ));
    }
    let written = queues.queue_blobs.metadata_tag(queue).await?;
    let failed = |fault: Fault| fault.of_change(operation, queue);
    if !queues.entities.delete(queue.as_str()).await.map_err(failed)? {
        queues.check_missing(queue).await.map_err(failed)?;
        return Err(StoreError::new(Kind::QueueNotFound, operation, queue));
    }
    lock(&queues.facts).remove(queue.as_str());
    queues.sessions.forget(queue.as_str());
    queues.partitioned.forget(queue.as_str());
    queues.counts.forget(queue.as_str());
    if let Ok(dead) = queue.dead_letter() {
        queues.counts.forget(dead.as_str());
    }
    lock(&queues.pools).remove(queue);
    // Emptied under a condition, which a deletion of the blob cannot have: the queue may have been recreated
    // by now.
    let Some(tag) = written else { return Ok(()) };
    queues.queue_blobs.empty_metadata(queue, tag).await
}

pub(super) async fn list(queues: &ServiceBusQueues, prefix: &str) -> Result<Vec<QueueName>, StoreError> {
    let all = queues.entities.all().await;
    let all = all.map_err(|fault| fault.of_read(Operation::ListQueues.as_str(), ""))?;
    let mut names = Vec::new();
    for description in all {
        // An entity named like a dead-letter queue cannot be reached under that name.
        let Ok(name) = QueueName::new(description.name) else { continue };
        if !name.is_dead_letter() {
            names.extend(name.dead_letter().ok().filter(|_| description.dead_letters != Some(0)));
            names.push(name);
        }
    }
    names.retain(|name| name.as_str().starts_with(prefix));
    names.sort();
    names.dedup();
    Ok(names)
}

pub(super) async fn properties(
    queues: &ServiceBusQueues,
    queue: &QueueName,
) -> Result<QueueProperties, StoreError> {
    let operation = Operation::QueueProperties.as_str();
    let mut now = None;
    let count = match queues.describe(queue).await {
        Ok(Some(description)) => {
            now = description.now;
            let count = if Place::of(queue).is_dead_letters {
                description.dead_letters
            } else {
                description.messages
            };
            let unknown = || Fault::unreadable("the description of a queue has no counts");
            let count = count.ok_or_else(unknown).map_err(|fault| fault.of_read(operation, queue))?;
            // The service's counts may be wrong for a long time, and a queue with a count of 0 may be deleted
            // with its payloads.
            if count == 0 && has_message(queues, queue).await? { 1 } else { count }
        }
        Ok(None) => return Err(StoreError::new(Kind::QueueNotFound, operation, queue)),
        Err(fault) => {
            let error = fault.of_read(operation, queue);
            if error.kind() != Kind::Unauthorized {
                return Err(error);
            }
            count::count(queues, queue).await?
        }
    };
    let metadata = queues.queue_blobs.metadata(queue).await?.unwrap_or_default();
    Ok(QueueProperties::new(metadata, count).with_now(now))
}

/// Returns whether a peek shows a message of a queue, in any state.
async fn has_message(queues: &ServiceBusQueues, queue: &QueueName) -> Result<bool, StoreError> {
    let failed = |fault: Fault| fault.of_read(Operation::QueueProperties.as_str(), queue);
    let node = queues.node(queue).await.map_err(failed)?;
    Ok(!manage::peek(&node, 0, 1).await.map_err(failed)?.is_empty())
}

#[async_trait]
impl MetadataStore for ServiceBusQueues {
    async fn queue_metadata(&self, queue: &QueueName) -> Result<Metadata, StoreError> {
        must_exist(self, queue, Operation::QueueMetadata).await?;
        Ok(self.queue_blobs.metadata(queue).await?.unwrap_or_default())
    }

    async fn replace_queue_metadata(
        &self,
        queue: &QueueName,
        before: &Metadata,
        metadata: &Metadata,
    ) -> Result<(), StoreError> {
        limits::check_metadata(Operation::SetQueueMetadata, queue, metadata)?;
        must_exist(self, queue, Operation::SetQueueMetadata).await?;
        self.queue_blobs.replace_metadata(queue, before, metadata).await
    }
}

pub(super) async fn set_metadata(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    metadata: &Metadata,
) -> Result<(), StoreError> {
    limits::check_metadata(Operation::SetQueueMetadata, queue, metadata)?;
    must_exist(queues, queue, Operation::SetQueueMetadata).await?;
    queues.queue_blobs.write_metadata(queue, metadata).await
}

async fn must_exist(
    queues: &ServiceBusQueues,
    queue: &QueueName,
    operation: Operation,
) -> Result<(), StoreError> {
    if exists(queues, queue).await? {
        return Ok(());
    }
    Err(StoreError::new(Kind::QueueNotFound, operation.as_str(), queue))
}

/// Deletes the messages that are visible or delayed when the call begins, and perhaps some that arrive later.
/// Messages under locks stay.
pub(super) async fn clear(queues: &ServiceBusQueues, queue: &QueueName) -> Result<(), StoreError> {
    let failed = |fault: Fault| fault.of_change(Operation::Clear.as_str(), queue);
    let node = queues.node(queue).await.map_err(before_request(failed))?;
    let now = queues.links.clock.now();
    // Before anything else, because a refusal shows that there are partitions or sessions, whose messages a
    // peek may not show.
    match manage::delete_batch(&node, DELETE_BATCH_SIZE, now + CLOCK_MARGIN).await {
        Ok(_) => {}
        Err(fault) if fault.is_unsupported() => {
            let error = StoreError::new(Kind::Unsupported, Operation::Clear.as_str(), queue);
            let advice = if Place::of(queue).is_dead_letters {
                "purge the dead letters one by one"
            } else {
                "delete the queue and create it again"
            };
            return Err(error.with_source(fault).with_detail(format!(
                "Service Bus does not delete the messages of all partitions, or of all sessions, at once; {advice}"
            )));
        }
        Err(fault) => return Err(failed(fault)),
    }
    delete_active(&node, now).await.map_err(failed)?;
    cancel_delayed(&node).await.map_err(failed)?;
    // Delays may have ended in the meantime, and such messages have new numbers since.
    delete_active(&node, now).await.map_err(failed)?;
    queues.counts.forget(queue.as_str());
    Ok(())
}

/// Deletes the messages that are active and not locked: those in the queue when the call begins, and perhaps
/// some that arrive later. Their numbers limit the deletion. Their times do not, because a dead letter keeps
/// the time of its message, but not its number.
async fn delete_active(node: &Node, now: SystemTime) -> Result<(), Fault> {
    let Some(last) = manage::last_from(node, 0).await? else { return Ok(()) };
    let end = last.enqueued.max(now) + CLOCK_MARGIN;
    // Limited by the count of numbers, because messages may keep arriving, and the first one stays if it is
    // locked.
    let mut most = i64::MAX;
    loop {
        let Some(first) = retry_while_busy(|| manage::peek(node, 0, 1)).await?.pop() else { return Ok(()) };
        most = most.min(last.sequence.saturating_sub(first.sequence).saturating_add(1));
        if most <= 0 {
            return Ok(());
        }
        match retry_while_busy(|| manage::delete_batch(node, DELETE_BATCH_SIZE, end)).await? {
            0 => return Ok(()),
            deleted => most -= deleted,
        }
    }
}

/// Cancels the delayed messages that a walk through the queue finds.
async fn cancel_delayed(node: &Node) -> Result<(), Fault> {
    let mut pages = Pages::of(node.clone());
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            return Ok(());
        }
        let delayed = page.iter().filter(|content| !content.is_active);
        // Each in a separate request, because a delay that has just ended must not prevent the other
        // cancellations.
        let delayed = delayed.map(|content| content.sequence);
        for cancelled in
            join_all(delayed.map(|number| retry_while_busy(move || manage::cancel(node, number)))).await
        {
            match cancelled {
                Err(fault) if !fault.is_missing_message() => return Err(fault),
                _ => {}
            }
        }
    }
}

/// Checks access by attaching the links that it needs; nothing is sent or received.
#[async_trait]
impl Permissions<QueueName> for ServiceBusQueues {
    async fn check_access(&self, queue: &QueueName, access: Access) -> Result<(), StoreError> {
        let is_dead = Place::of(queue).is_dead_letters;
        let (result, claim) = match access {
            // Dead letters are written by settling messages, for which the claim of their queue is enough.
            Access::Send if is_dead => return Ok(()),
            Access::Send => (self.sender(queue).await.map(drop), "Send"),
            _ => match self.receiver(queue).await {
                // The queue requires sessions, and the claim is present. A message that is put back stays in
                // its session.
                Err(fault) if fault.is_not_allowed() => return Ok(()),
                // A message that is put back is replaced by a copy.
                Ok(_) if !is_dead => (self.sender(queue).await.map(drop), "Send"),
                attached => (attached.map(drop), "Listen"),
            },
        };
        match result {
            Err(fault) if !fault.is_missing_entity() => {
                let error = fault.of_read(Operation::CheckQueueAccess.as_str(), queue);
                let is_refused = error.kind() == Kind::Unauthorized;
                Err(if is_refused {
                    error.with_detail(format!("the key lacks the claim {claim}"))
                } else {
                    error
                })
            }
            _ => Ok(()),
        }
    }
}
