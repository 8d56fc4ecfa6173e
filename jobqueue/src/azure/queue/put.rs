//! Put Message.

use std::time::Duration;

use azure_storage_queue::models::QueueClientSendMessageOptions;
use bytes::Bytes;

use super::super::call::Call;
use super::super::connection::Connection;
use super::super::{time, xml};
use super::get;
use crate::storage::{
    MAX_TEXT_BYTES, MAX_VISIBILITY, PopReceipt, PutMessage, PutOutcome, StoreError, StoreErrorKind,
};
use crate::vocabulary::name::QueueName;

/// The most bytes the service takes as the body of a request.
const MAX_BODY_BYTES: usize = 131_584;

pub(super) async fn put(
    connection: &Connection,
    queue: &QueueName,
    message: &PutMessage,
) -> Result<PutOutcome, StoreError> {
    let call = Call::once("put message", queue);
    let body = body(call, &message.text)?;
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
    Ok(PutOutcome {
        message: crate::storage::MessageRef { id, receipt },
        inserted: time::date(stored.inserted.as_deref()),
        expires: time::expiry(stored.expires.as_deref()),
        next_visible: time::date(stored.next_visible.as_deref()),
    })
}

/// The body that carries `text`, or why the service would not take it.
pub(super) fn body(call: Call<'_>, text: &str) -> Result<Bytes, StoreError> {
    let too_large = |what: &str, bytes: usize, allowed: usize| {
        call.error(StoreErrorKind::TooLarge)
            .with_detail(format!("{what} has {bytes} bytes; {allowed} are allowed"))
    };
    if text.len() > MAX_TEXT_BYTES {
        return Err(too_large("the text", text.len(), MAX_TEXT_BYTES));
    }
    if let Some(bad) = text.chars().find(|c| !xml::is_xml(*c)) {
        return Err(call.refuse(format!(
            "the text has the character U+{:04X}, which XML cannot carry; encode it",
            u32::from(bad)
        )));
    }
    let body = xml::write_message(text);
    if body.len() > MAX_BODY_BYTES {
        return Err(too_large("the text, escaped for XML,", body.len(), MAX_BODY_BYTES));
    }
    Ok(body.into())
}

/// Delay and time to live in seconds, −1 for ever.
fn times(call: Call<'_>, message: &PutMessage) -> Result<(i32, i32), StoreError> {
    if message.visibility_delay > MAX_VISIBILITY {
        return Err(call.refuse("the delay is longer than 7 days"));
    }
    let delay = time::seconds(call, "a delay", message.visibility_delay)?;
    let Some(ttl) = message.ttl else { return Ok((delay, -1)) };
    if ttl < Duration::from_secs(1) {
        return Err(call.refuse("the time to live is shorter than 1 second"));
    }
    if message.visibility_delay >= ttl {
        return Err(call.refuse("the delay is not shorter than the time to live"));
    }
    let ttl = time::seconds(call, "a time to live", ttl)?;
    // Rounding up must not make them equal, which the service refuses.
    Ok((delay.min(ttl - 1), ttl))
}
