//! The blobs that the dead letters of a queue refer to.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::{StreamExt, stream};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::envelope::{Parsed, UNREADABLE_KIND, parse};
use crate::storage::{
    ExpiredReceipt, GetMessages, LeasedMessage, MAX_MESSAGES, MessageRef, QueueName, Queues, Received,
    Storage, StoreError, StoreErrorKind, UpdateMessage,
};

/// The lease of the dead letters while they are read.
const HOLD: Duration = Duration::from_secs(600);
/// The most dead letters that are read.
const MAX_LETTERS: u64 = 10_000;
/// The number of letters that are made visible again at once.
const RELEASED_AT_ONCE: usize = 32;

/// Returns the number of messages of a queue as the storage counts them, 0 if the queue does not exist.
pub(super) async fn count(store: &Queues, queue: &QueueName) -> Result<u64, StoreError> {
    match store.queue_properties(queue).await {
        Ok(properties) => Ok(properties.approximate_count),
        Err(e) if e.kind() == StoreErrorKind::QueueNotFound => Ok(0),
        Err(e) => Err(e),
    }
}

/// Returns the names of the blobs that the messages of a dead-letter queue refer to. Returns `None` if there are too many letters, if
/// others hold some of them, if `stop` fires, or if one is no event: it may refer to any blob, in a form of another version.
pub(super) async fn needed_by(
    storage: &Storage,
    letters: &QueueName,
    stop: &CancellationToken,
) -> Result<Option<HashSet<String>>, StoreError> {
    let store = storage.queues();
    let mut held = Vec::new();
    let needed = match count(store, letters).await? {
        0 => Ok(Some(HashSet::new())),
        1..=MAX_LETTERS => read(store, letters, stop, &mut held).await,
        _ => Ok(None),
    };
    let release = async |message: MessageRef| {
        let update = UpdateMessage::new(Duration::ZERO).with_expired(ExpiredReceipt::Allow).ending_lease();
        if let Err(error) = store.update(letters, &message, update).await {
            crate::log::debug!(queue = %letters, %error, "a dead letter stays invisible for up to 10 minutes");
        }
    };
    stream::iter(held).for_each_concurrent(RELEASED_AT_ONCE, release).await;
    needed
}

/// Leases all letters, so that none of them can go or be seen twice, and compares their number with that of the queue.
async fn read(
    store: &Queues,
    letters: &QueueName,
    stop: &CancellationToken,
    held: &mut Vec<MessageRef>,
) -> Result<Option<HashSet<String>>, StoreError> {
    let mut needed = HashSet::new();
    let (mut is_readable, mut held_until) = (true, Instant::now() + HOLD);
    loop {
        let requested = Instant::now();
        let get = GetMessages::new(MAX_MESSAGES, HOLD);
        let Received { messages, .. } = store.get(letters, get).await?;
        if messages.is_empty() || !is_readable {
            held.extend(messages.into_iter().map(|leased| leased.message));
            break;
        }
        for LeasedMessage { message, text, granted, .. } in messages {
            held.push(message);
            held_until = held_until.min(requested + granted.unwrap_or(HOLD));
            match text.as_deref().map(parse) {
                Ok(Ok(Parsed::Event(event))) if *event.kind != *UNREADABLE_KIND => {
                    needed.extend(event.references().iter().map(ToString::to_string));
                }
                _ => is_readable = false,
            }
        }
        is_readable &= held.len() as u64 <= MAX_LETTERS && !stop.is_cancelled();
    }
    let are_all = count(store, letters).await? <= held.len() as u64 && Instant::now() < held_until;
    Ok(Some(needed).filter(|_| is_readable && are_all))
}
