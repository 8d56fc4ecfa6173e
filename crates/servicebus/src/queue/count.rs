//! Counts messages by peeking, for callers without the claim Manage.

use std::time::Duration;

use tokio::time::Instant;

use super::super::cache::Expiring;
use super::super::error::Fault;
use super::ServiceBusQueues;
use super::manage::Pages;
use super::message::is_of_partition;
use jobqueue_storage::{Operation, QueueName, StoreError};

/// The duration below which a count is not cached.
const UNCACHED_TIME: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy)]
pub(super) struct Count {
    messages: u64,
    valid_until: Instant,
    serves_until: Instant,
}

impl Expiring for Count {
    fn is_gone(&self) -> bool {
        // A queue with a count of 0 may be deleted with its payloads, and 0 is true only at the moment of the
        // count.
        self.messages == 0 || self.valid_until <= Instant::now()
    }

    fn serves_while_stale(&self) -> bool {
        self.messages != 0 && Instant::now() < self.serves_until
    }
}

/// Returns the number of messages of a queue in any state, counted by peeks. A count is valid for ten times
/// as long as it took, not counting its first second. For twice that time more, it is returned while the next
/// count is made.
///
/// # Errors
/// `Unsupported` for a partitioned queue, because peeks may not see all its messages; and the errors of the
/// peeks.
pub(super) async fn count(queues: &ServiceBusQueues, queue: &QueueName) -> Result<u64, StoreError> {
    let walk = || {
        let (queues, queue) = (queues.clone(), queue.clone());
        async move { queues.count_by_peeks(&queue).await }
    };
    let counted = queues.counts.get(queues.links.runtime(), queue.as_str(), walk).await;
    counted
        .map(|counted| counted.messages)
        .map_err(|fault| fault.of_read(Operation::QueueProperties.as_str(), queue))
}

impl ServiceBusQueues {
    async fn count_by_peeks(&self, queue: &QueueName) -> Result<Count, Fault> {
        let begun = Instant::now();
        let mut pages = Pages::of(self.node(queue).await?);
        let mut messages = 0;
        loop {
            let page = pages.next().await?;
            if page.is_empty() {
                break;
            }
            if page.iter().any(|content| is_of_partition(content.sequence)) {
                return Err(Fault::unsupported(
                    "only the claim Manage shows how many messages a partitioned queue has",
                ));
            }
            messages += page.len() as u64;
        }
        let valid_until = Instant::now() + begun.elapsed().saturating_sub(UNCACHED_TIME) * 10;
        // The next count takes about as long.
        let serves_until = valid_until + begun.elapsed().saturating_sub(UNCACHED_TIME) * 2;
        Ok(Count { messages, valid_until, serves_until })
    }
}
