//! Converts the messages of answers.

use std::time::SystemTime;

use super::super::call::Call;
use super::super::convert;
use super::super::xml::{RawMessage, RawMessages};
use jobqueue_storage::log::warn;
use jobqueue_storage::{
    LeasedMessage, MessageId, MessageRef, PeekedMessage, PopReceipt, PutOutcome, QueueName, StoreError,
};

/// Returns the messages of a complete answer. No message of an incomplete answer is used: the leased ones
/// become visible again when their visibility timeout is over.
pub(super) fn complete(call: Call<'_>, answer: RawMessages) -> Result<Vec<RawMessage>, StoreError> {
    match answer.broken {
        Some(problem) => Err(call.unreadable(problem)),
        None => Ok(answer.messages),
    }
}

/// Returns the single message of the answer to a put.
pub(super) fn stored(call: Call<'_>, mut answer: RawMessages) -> Result<PutOutcome, StoreError> {
    let stored = answer.messages.pop().filter(|_| answer.messages.is_empty());
    let stored = stored.ok_or_else(|| call.unreadable("the answer does not contain exactly one message"))?;
    let receipt = stored.receipt.map(PopReceipt::new);
    let (Some(id), Some(receipt)) = (message_id(stored.id.as_deref()), receipt) else {
        return Err(call.unreadable("the answer lacks the message's id or receipt"));
    };
    let inserted = convert::date(stored.inserted.as_deref());
    let next_visible = convert::date(stored.next_visible.as_deref());
    let outcome = PutOutcome::new(MessageRef { id, receipt }, inserted, next_visible);
    Ok(outcome.with_expires(convert::expiry(stored.expires.as_deref())))
}

pub(super) fn leased(queue: &QueueName, raw: RawMessage, until: SystemTime) -> Option<LeasedMessage> {
    let (Some(id), Some(receipt)) = (message_id(raw.id.as_deref()), raw.receipt.as_deref()) else {
        // A message without id or receipt cannot be settled; it becomes visible again after its visibility
        // timeout.
        warn!(%queue, "a message without id or receipt was ignored");
        return None;
    };
    let (dequeue_count, text) = count_and_text(&raw);
    let message = MessageRef { id, receipt: PopReceipt::new(receipt) };
    let inserted = convert::date(raw.inserted.as_deref());
    let next_visible = raw.next_visible.as_deref().map_or(until, |text| convert::date(Some(text)));
    let leased = LeasedMessage::new(message, text, dequeue_count, inserted, next_visible);
    Some(leased.with_expires(convert::expiry(raw.expires.as_deref())))
}

pub(super) fn peeked(queue: &QueueName, raw: RawMessage) -> Option<PeekedMessage> {
    let Some(id) = message_id(raw.id.as_deref()) else {
        warn!(%queue, "a message without id was ignored");
        return None;
    };
    let (dequeue_count, text) = count_and_text(&raw);
    let peeked = PeekedMessage::new(id, text, dequeue_count, convert::date(raw.inserted.as_deref()));
    Some(peeked.with_expires(convert::expiry(raw.expires.as_deref())))
}

/// Returns the dequeue count and the text of a message. A message without a count was delivered at least
/// once. Its text is kept, because the attempts that count are stored there.
fn count_and_text(raw: &RawMessage) -> (u32, Result<String, String>) {
    let count = raw.dequeue_count.as_deref().and_then(|count| count.trim().parse().ok()).unwrap_or(1);
    (count, raw.text.clone().unwrap_or_else(|| Err("the message has no text".to_owned())))
}

/// Returns the id if it can be a path segment. The service's ids are UUIDs.
fn message_id(id: Option<&str>) -> Option<MessageId> {
    id.filter(|id| is_id(id)).map(MessageId::new)
}

/// Refuses a message whose id does not come from the service.
pub(super) fn check_id(call: Call<'_>, message: &MessageRef) -> Result<(), StoreError> {
    if is_id(message.id.as_str()) {
        return Ok(());
    }
    Err(call.refuse("the message's id does not have the form of this storage's ids"))
}

/// Returns whether the id is exactly one path segment.
fn is_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_without_a_count_keeps_its_text() {
        let (id, receipt) = (Some("5".to_owned()), Some("r".to_owned()));
        let raw = RawMessage { id, receipt, text: Some(Ok("job".to_owned())), ..RawMessage::default() };
        let leased = leased(&QueueName::new("jobs").unwrap(), raw, SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!(leased.dequeue_count, 1);
        assert_eq!(leased.text.as_deref(), Ok("job"));
    }
}
