//! A reading of a queue's figures, which pages, commands and metrics share.

use std::time::{Duration, SystemTime};

use futures_util::{join, try_join};

use crate::presence::storage_time;
use crate::storage::{
    MAX_MESSAGES, MessageState, Metadata, QueueName, QueueProperties, Queues, StateCounts, Storage,
    StoreError, StoreErrorKind,
};

/// The figures of a queue at one moment.
#[derive(Debug)]
pub struct QueueReading {
    /// The approximate number of messages, invisible messages included; never less than
    /// [`visible`](Self::visible). An error if the storage cannot count them.
    pub length: Result<u64, StoreError>,
    /// The messages in each state; `None` if the storage does not count them.
    pub states: Option<StateCounts>,
    /// The number of visible messages that a peek returned: at most 32.
    pub visible: u64,
    /// True if [`visible`](Self::visible) is exact.
    pub visible_is_exact: bool,
    /// The age of the oldest message. If the storage can list every message: the time since the oldest
    /// receivable message became due. Messages that wait for another message of their group do not count. In
    /// other storages: the time since the oldest message of the peek was inserted. `None` if no message can
    /// be received, and if the storage does not return its time.
    pub oldest: Option<Duration>,
    /// True if messages are visible, but each waits for another message of its group, so that none can be
    /// received. Always false in storages that cannot list every message.
    pub held_up: bool,
    /// The approximate number of dead letters; for a dead-letter queue, of its own messages. An error if the
    /// storage cannot count them.
    pub dead_letters: Result<u64, StoreError>,
    /// The metadata.
    pub metadata: Metadata,
    /// The time of the reading by the storage's clock, or by this process's clock if the storage does not
    /// return its time.
    pub now: SystemTime,
}

impl QueueReading {
    /// Reads the figures of a queue, and counts it once. Costs three requests, one more each if the storage
    /// can list every message and if it counts them by state, and a listing if its answers contain no time.
    /// On Service Bus the peek takes up to five requests, and in a queue with sessions also a blob read for
    /// each message that it meets: up to 432 if many messages are held for their back-off.
    ///
    /// # Errors
    /// The errors of the contract of [`QueueStore`](crate::storage::QueueStore). If only a count fails, of
    /// the messages or of the dead letters, the error is in its field.
    pub async fn take(storage: &Storage, queue: &QueueName) -> Result<Self, StoreError> {
        let store = storage.queues();
        let (properties, peeked, dead_letters, first_due) = join!(
            properties(store, queue),
            store.peek(queue, MAX_MESSAGES),
            dead_letters(store, queue),
            first_due(store, queue)
        );
        let (Properties { length, states, metadata, answered }, peeked) = (properties?, peeked?);
        // Without the storage's time, the reading has no age.
        let now = storage_time(storage, answered).await.ok().flatten();
        let visible = peeked.len() as u64;
        let first_due = first_due?;
        let oldest = match &first_due {
            Some(FirstDue::At(due)) => Some(*due),
            // A message that only the peek returned became due after the listing.
            Some(FirstDue::NoMessage) => now.filter(|_| visible > 0),
            Some(FirstDue::HeldUp) => None,
            None => peeked.iter().map(|message| message.inserted).min(),
        };
        let reach = store.powers().peek_reach;
        let is_within_reach = reach.is_none_or(|reach| length.as_ref().is_ok_and(|length| *length <= reach));
        Ok(Self {
            length: length.map(|length| length.max(visible)),
            states,
            visible,
            visible_is_exact: visible < MAX_MESSAGES.into() && is_within_reach,
            // Clocks may differ: a message inserted in the future counts as new.
            oldest: oldest.zip(now).map(|(at, now)| now.duration_since(at).unwrap_or_default()),
            held_up: matches!(first_due, Some(FirstDue::HeldUp)),
            dead_letters,
            metadata,
            now: now.unwrap_or_else(|| storage.runtime().clock().now()),
        })
    }

    /// Returns the value for a gauge of ages: [`oldest`](Self::oldest), or zero if certainly no message can
    /// be received. `None` if the age is unknown.
    pub fn age(&self) -> Option<Duration> {
        let receives_none = self.held_up || (self.visible == 0 && self.visible_is_exact);
        self.oldest.or(receives_none.then_some(Duration::ZERO))
    }
}

/// The properties of a queue. The storage may be unable to count its messages.
struct Properties {
    length: Result<u64, StoreError>,
    states: Option<StateCounts>,
    metadata: Metadata,
    /// The storage's time of the answer.
    answered: Option<SystemTime>,
}

async fn properties(store: &Queues, queue: &QueueName) -> Result<Properties, StoreError> {
    match counted(store, queue).await {
        Err(e) if e.kind() == StoreErrorKind::Unsupported => {
            let metadata = store.queue_metadata(queue).await?;
            Ok(Properties { length: Err(e), states: None, metadata, answered: None })
        }
        counted => counted,
    }
}

/// Counts once: a storage that counts by state is not asked for the length, which is the sum.
async fn counted(store: &Queues, queue: &QueueName) -> Result<Properties, StoreError> {
    let Some(counter) = &store.powers().counts else {
        let QueueProperties { approximate_count, metadata, now, .. } = store.queue_properties(queue).await?;
        return Ok(Properties { length: Ok(approximate_count), states: None, metadata, answered: now });
    };
    let (states, metadata) = try_join!(counter.counts_by_state(queue), store.queue_metadata(queue))?;
    Ok(Properties { length: Ok(states.total()), states: Some(states), metadata, answered: states.now })
}

async fn dead_letters(store: &Queues, queue: &QueueName) -> Result<u64, StoreError> {
    // Callers read a dead-letter queue as such only if its queue was deleted.
    let dead = if queue.is_dead_letter() { Ok(queue.clone()) } else { queue.dead_letter() };
    let Ok(dead) = dead else { return Ok(0) };
    match store.queue_properties(&dead).await {
        Ok(properties) => Ok(properties.approximate_count),
        // The dead-letter queue is created with the first dead letter.
        Err(e) if e.kind() == StoreErrorKind::QueueNotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// The first receivable message of a queue.
enum FirstDue {
    /// The time at which it became due.
    At(SystemTime),
    /// Each visible message waits for another of its group.
    HeldUp,
    /// No message is visible.
    NoMessage,
}

/// Returns `None` if the storage cannot list its messages.
async fn first_due(store: &Queues, queue: &QueueName) -> Result<Option<FirstDue>, StoreError> {
    let Some(index) = &store.powers().index else { return Ok(None) };
    let page = index.messages(queue, MessageState::Waiting, None, 1).await?;
    Ok(Some(match page.messages.first() {
        Some(_) if page.waiting_for_group > 0 => FirstDue::HeldUp,
        Some((_, due)) => FirstDue::At(*due),
        None => FirstDue::NoMessage,
    }))
}
