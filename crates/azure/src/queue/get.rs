//! Implements Get Messages and Peek Messages.

use std::time::SystemTime;

use azure_storage_queue::models::{QueueClientPeekMessagesOptions, QueueClientReceiveMessagesOptions};

use super::super::call::{Call, with_limit};
use super::super::connection::Connection;
use super::super::time;
use super::super::xml::{self, RawMessage, RawMessages};
use jobqueue_storage::QueueName;
use jobqueue_storage::rules::limits;
use jobqueue_storage::{
    GetMessages, LeasedMessage, MessageId, MessageRef, PeekedMessage, PopReceipt, Received, StoreError,
};

/// The greatest size of the answer to a get: 32 messages of 64 KiB, each byte written as a character reference.
const ANSWER_LIMIT: u64 = 16 * 1024 * 1024;

pub(super) async fn get(
    connection: &Connection,
    queue: &QueueName,
    options: GetMessages,
) -> Result<Received, StoreError> {
    let call = Call::once("get messages", queue);
    limits::check_get(queue, &options)?;
    let visibility = time::seconds(call, "a visibility timeout", options.visibility)?;
    let count = options.count.cast_signed();
    let answer = call
        .run(async {
            let options = QueueClientReceiveMessagesOptions {
                number_of_messages: Some(count),
                visibility_timeout: Some(visibility),
                method_options: with_limit(ANSWER_LIMIT),
                ..QueueClientReceiveMessagesOptions::default()
            };
            connection.queue(queue)?.receive_messages(Some(options)).await
        })
        .await?;
    let raw = complete(call, xml::read_messages(answer.body()))?;
    let until = SystemTime::now() + options.visibility;
    Ok(Received::new(raw.into_iter().filter_map(|message| leased(queue, message, until)).collect()))
}

pub(super) async fn peek(
    connection: &Connection,
    queue: &QueueName,
    wanted: u32,
) -> Result<Vec<PeekedMessage>, StoreError> {
    let call = Call::reads("peek messages", queue);
    limits::check_peek(queue, wanted)?;
    let answer = call
        .run_again(connection.runtime(), || async {
            let options = QueueClientPeekMessagesOptions {
                number_of_messages: Some(wanted.cast_signed()),
                method_options: with_limit(ANSWER_LIMIT),
                ..QueueClientPeekMessagesOptions::default()
            };
            connection.queue(queue)?.peek_messages(Some(options)).await
        })
        .await?;
    let raw = complete(call, xml::read_messages(answer.body()))?;
    Ok(raw.into_iter().filter_map(|message| peeked(queue, message)).collect())
}

/// Returns the messages of an answer that was read to its end. No message of a broken-off answer is used: the leased
/// ones become visible again when their visibility timeout is over.
fn complete(call: Call<'_>, answer: RawMessages) -> Result<Vec<RawMessage>, StoreError> {
    match answer.broken {
        Some(problem) => Err(call.unreadable(problem)),
        None => Ok(answer.messages),
    }
}

fn leased(queue: &QueueName, raw: RawMessage, until: SystemTime) -> Option<LeasedMessage> {
    let (Some(id), Some(receipt)) = (message_id(raw.id.as_deref()), raw.receipt.as_deref()) else {
        // The message cannot be settled; it becomes visible again when its visibility timeout is over.
        tracing::warn!(%queue, "a message without id or receipt was ignored");
        return None;
    };
    let (dequeue_count, text) = count_and_text(&raw);
    let message = MessageRef { id, receipt: PopReceipt::new(receipt) };
    let inserted = time::date(raw.inserted.as_deref());
    let next_visible = raw.next_visible.as_deref().map_or(until, |text| time::date(Some(text)));
    let leased = LeasedMessage::new(message, text, dequeue_count, inserted, next_visible);
    Some(leased.with_expires(time::expiry(raw.expires.as_deref())))
}

fn peeked(queue: &QueueName, raw: RawMessage) -> Option<PeekedMessage> {
    let Some(id) = message_id(raw.id.as_deref()) else {
        tracing::warn!(%queue, "a message without id was ignored");
        return None;
    };
    let (dequeue_count, text) = count_and_text(&raw);
    let peeked = PeekedMessage::new(id, text, dequeue_count, time::date(raw.inserted.as_deref()));
    Some(peeked.with_expires(time::expiry(raw.expires.as_deref())))
}

/// Returns the count and text of a message. One without a count was delivered at least once. Its text is kept: the text
/// holds the attempts that count.
fn count_and_text(raw: &RawMessage) -> (u32, Result<String, String>) {
    let count = raw.dequeue_count.as_deref().and_then(|count| count.trim().parse().ok()).unwrap_or(1);
    (count, raw.text.clone().unwrap_or_else(|| Err("the message has no text".to_owned())))
}

/// Returns an id that can be part of a path: the service's ids are UUIDs.
pub(super) fn message_id(id: Option<&str>) -> Option<MessageId> {
    id.filter(|id| is_id(id)).map(MessageId::new)
}

/// Returns whether the id is exactly one segment of a path.
pub(super) fn is_id(id: &str) -> bool {
    (1..=128).contains(&id.len()) && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_without_a_count_keeps_its_text() {
        let (id, receipt) = (Some("5".to_owned()), Some("r".to_owned()));
        let raw = RawMessage { id, receipt, text: Some(Ok("job".to_owned())), ..RawMessage::default() };
        let leased = leased(&QueueName::new("jobs").unwrap(), raw, SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!((leased.dequeue_count, leased.text.as_deref()), (1, Ok("job")));
    }
}
