//! Implements Put Message.

use azure_storage_queue::models::QueueClientSendMessageOptions;
use bytes::Bytes;

use super::super::call::Call;
use super::super::connection::Connection;
use super::super::{time, xml};
use super::get;
use jobqueue_storage::QueueName;
use jobqueue_storage::rules::limits;
use jobqueue_storage::{MessageRef, PopReceipt, PutMessage, PutOutcome, StoreError};

pub(super) async fn put(
    connection: &Connection,
    queue: &QueueName,
    message: &PutMessage,
) -> Result<PutOutcome, StoreError> {
    let call = Call::once("put message", queue);
    limits::check_put(queue, message)?;
    let body = Bytes::from(xml::write_message(&message.text));
    let (delay, ttl) = times(call, message)?;
    let answer = call
        .run(async {
            let options = QueueClientSendMessageOptions {
                message_time_to_live: Some(ttl),
                visibility_timeout: Some(delay),
                ..QueueClientSendMessageOptions::default()
            };
            connection.queue(queue)?.send_message(body.into(), Some(options)).await
        })
        .await?;
    let mut answer = xml::read_messages(answer.body());
    let stored = answer.messages.pop().filter(|_| answer.messages.is_empty());
    let stored = stored.ok_or_else(|| call.unreadable("the answer does not hold the one message"))?;
    let receipt = stored.receipt.clone().map(PopReceipt::new);
    let (Some(id), Some(receipt)) = (get::message_id(stored.id.as_deref()), receipt) else {
        return Err(call.unreadable("the answer lacks the message's id or receipt"));
    };
    let inserted = time::date(stored.inserted.as_deref());
    let next_visible = time::date(stored.next_visible.as_deref());
    let outcome = PutOutcome::new(MessageRef { id, receipt }, inserted, next_visible);
    Ok(outcome.with_expires(time::expiry(stored.expires.as_deref())))
}

/// Returns the delay and the time to live in seconds; −1 means forever.
fn times(call: Call<'_>, message: &PutMessage) -> Result<(i32, i32), StoreError> {
    let delay = time::seconds(call, "a delay", message.visibility_delay)?;
    let Some(ttl) = message.ttl else { return Ok((delay, -1)) };
    let ttl = time::seconds(call, "a time to live", ttl)?;
    // Rounding up must not make them equal, which the service refuses.
    Ok((delay.min(ttl - 1), ttl))
}
