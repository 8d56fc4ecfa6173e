//! One look at a queue, from which pages, commands and metrics take the same figures.

use std::time::{Duration, SystemTime};

use futures_util::join;

use crate::presence::storage_time;
use crate::storage::{
    MAX_MESSAGES, MessageState, Metadata, QueueName, Queues, Storage, StoreError, StoreErrorKind,
};

/// The figures of a queue at one moment.
#[derive(Debug)]
pub struct QueueReading {
    /// About how many messages there are, invisible ones included, and never fewer than are [visible](Self::visible). An error if the
    /// storage cannot count them.
    pub length: Result<u64, StoreError>,
    /// The number of visible messages that a peek has shown: at most 32.
    pub visible: u64,
    /// True if [`visible`](Self::visible) is exact.
    pub visible_is_exact: bool,
    /// The time since the oldest message that can be received was due, where the storage shows every message: those that wait for another of
    /// their group do not count, and it is zero if all do. Elsewhere the time since the oldest of those that a peek has shown was inserted. `None`
    /// if none has been seen, or if the storage does not return its time.
    pub oldest: Option<Duration>,
    /// About how many dead letters there are; of a dead-letter queue, its own messages. An error if they cannot be counted.
    pub dead_letters: Result<u64, StoreError>,
    /// The metadata.
    pub metadata: Metadata,
    /// The time of the look by the storage's clock, or by that of this process if the storage does not return its time.
    pub now: SystemTime,
}

impl QueueReading {
    /// Looks at a queue. Costs three requests, one more where the storage shows every message, and a listing where the answers have no time. On
    /// Service Bus the peek is up to five, and in a queue with sessions also a read of a blob for each message that it meets, up to 432 where many are held for their back-off.
    ///
    /// # Errors
    /// Those of the contract of [`QueueStore`](crate::storage::QueueStore). A queue whose messages or dead letters alone cannot be counted
    /// is none.
    pub async fn take(storage: &Storage, queue: &QueueName) -> Result<Self, StoreError> {
        let store = storage.queues();
        let (properties, peeked, dead_letters, first_due) = join!(
            properties(store, queue),
            store.peek(queue, MAX_MESSAGES),
            dead_letters(store, queue),
            first_due(store, queue)
        );
        let (Properties { length, metadata, answered }, peeked) = (properties?, peeked?);
        // A storage whose clock cannot be read shows no ages.
        let now = storage_time(storage, answered).await.ok().flatten();
        let visible = peeked.len() as u64;
        let oldest = match &store.powers().index {
            // A message that the peek alone shows has become due meanwhile, or waits for another of its group.
            Some(_) => first_due?.or(now.filter(|_| visible > 0)),
            None => peeked.iter().map(|message| message.inserted).min(),
        };
        let reach = store.powers().peek_reach;
        let is_within_reach = reach.is_none_or(|reach| length.as_ref().is_ok_and(|length| *length <= reach));
        Ok(Self {
            length: length.map(|length| length.max(visible)),
            visible,
            visible_is_exact: visible < MAX_MESSAGES.into() && is_within_reach,
            // Two clocks may differ: what was inserted in the future is new.
            oldest: oldest.zip(now).map(|(at, now)| now.duration_since(at).unwrap_or_default()),
            dead_letters,
            metadata,
            now: now.unwrap_or_else(|| storage.runtime().clock().now()),
        })
    }

    /// Returns the value of a gauge of ages: [`oldest`](Self::oldest), and zero if no message is visible. `None` if that is not known.
    pub fn age(&self) -> Option<Duration> {
        oldest_age(self.oldest, self.visible, self.visible_is_exact)
    }
}

/// Returns the value of a gauge of ages for these fields of a [`QueueReading`].
pub fn oldest_age(oldest: Option<Duration>, visible: u64, visible_is_exact: bool) -> Option<Duration> {
    oldest.or((visible == 0 && visible_is_exact).then_some(Duration::ZERO))
}

/// The properties of a queue whose messages the storage may be unable to count.
struct Properties {
    length: Result<u64, StoreError>,
    metadata: Metadata,
    /// The storage's time of the answer.
    answered: Option<SystemTime>,
}

async fn properties(store: &Queues, queue: &QueueName) -> Result<Properties, StoreError> {
    match store.queue_properties(queue).await {
        Ok(found) => Ok(Properties {
            length: Ok(found.approximate_count),
            metadata: found.metadata,
            answered: found.now,
        }),
        Err(e) if e.kind() == StoreErrorKind::Unsupported => {
            Ok(Properties { length: Err(e), metadata: store.queue_metadata(queue).await?, answered: None })
        }
        Err(e) => Err(e),
    }
}

async fn dead_letters(store: &Queues, queue: &QueueName) -> Result<u64, StoreError> {
    // A dead-letter queue is read by itself only if its queue was deleted.
    let dead = if queue.is_dead_letter() { Ok(queue.clone()) } else { queue.dead_letter() };
    let Ok(dead) = dead else { return Ok(0) };
    match store.queue_properties(&dead).await {
        Ok(properties) => Ok(properties.approximate_count),
        // The first dead letter makes their queue.
        Err(e) if e.kind() == StoreErrorKind::QueueNotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// Returns the time at which the first of the messages that can be received was due, where the storage shows it.
async fn first_due(store: &Queues, queue: &QueueName) -> Result<Option<SystemTime>, StoreError> {
    let Some(index) = &store.powers().index else { return Ok(None) };
    let page = index.messages(queue, MessageState::Waiting, None, 1).await?;
    Ok(page.messages.first().filter(|_| page.waiting_for_group == 0).map(|(_, due)| *due))
}
