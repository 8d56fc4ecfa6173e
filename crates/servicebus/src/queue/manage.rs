//! The operations of a queue's management node.

use std::time::SystemTime;

use fe2o3_amqp::types::messaging::message::DecodeIntoMessage as _;
use fe2o3_amqp::types::messaging::{Body, Data, Message};
use fe2o3_amqp::types::primitives::{Array, Binary, Timestamp, Uuid as AmqpUuid, Value};
use uuid::Uuid;

use super::super::amqp::requests::{Node, Request};
use super::super::amqp::settlement::Settlement;
use super::super::amqp::{Incoming, encode, field, map};
use super::super::error::Fault;
use super::message::{Content, instant, millis};

fn request(operation: &'static str, body: Value) -> Request {
    Request { operation, properties: Vec::new(), body }
}

fn tokens(token: Uuid) -> Value {
    Value::Array(Array(vec![Value::Uuid(AmqpUuid::from(*token.as_bytes()))]))
}

fn unreadable(what: &str) -> Fault {
    Fault::Unreadable(format!("the answer lacks {what}"))
}

/// Renews a lock; returns its new end.
pub(super) async fn renew(node: &Node, token: Uuid) -> Result<SystemTime, Fault> {
    let body = map([("lock-tokens", tokens(token))]);
    let answer = node.call(request("com.microsoft:renew-lock", body)).await?;
    let expirations = answer.as_ref().and_then(|answer| field(answer, "expirations"));
    match expirations {
        Some(Value::Array(ends)) => match ends.0.first() {
            Some(Value::Timestamp(end)) => Ok(instant(end.milliseconds())),
            _ => Err(unreadable("the end of the lock")),
        },
        _ => Err(unreadable("the end of the lock")),
    }
}

/// Returns the request that settles a message by the token of its lock.
pub(super) fn settling(token: Uuid, how: &Settlement) -> Request {
    let text = |text: &str| Value::String(text.to_owned());
    let status = |status: &str| ("disposition-status", text(status));
    let tokens = ("lock-tokens", tokens(token));
    let body = match how {
        Settlement::Complete => map([status("completed"), tokens]),
        // Management has no release.
        Settlement::Abandon | Settlement::Release => map([status("abandoned"), tokens]),
        Settlement::DeadLetter(letter) => map([
            status("suspended"),
            tokens,
            ("deadletter-reason", text(&letter.reason)),
            ("deadletter-description", text(&letter.description)),
            ("properties-to-modify", map([(letter.property.0, text(&letter.property.1))])),
        ]),
    };
    request("com.microsoft:update-disposition", body)
}

/// Schedules a message; returns its number.
pub(super) async fn schedule(node: &Node, id: &str, message: &Message<Data>) -> Result<i64, Fault> {
    let entry = map([
        ("message-id", Value::String(id.to_owned())),
        ("message", Value::Binary(Binary::from(encode(message)?))),
    ]);
    let body = map([("messages", Value::List(vec![entry]))]);
    let answer = node.call(request("com.microsoft:schedule-message", body)).await?;
    match answer.as_ref().and_then(|answer| field(answer, "sequence-numbers")) {
        Some(Value::Array(numbers)) => match numbers.0.first() {
            Some(Value::Long(number)) => Ok(*number),
            _ => Err(unreadable("the number of the message")),
        },
        _ => Err(unreadable("the number of the message")),
    }
}

/// Cancels scheduled messages.
pub(super) async fn cancel(node: &Node, numbers: &[i64]) -> Result<(), Fault> {
    let numbers = numbers.iter().copied().map(Value::Long).collect();
    let body = map([("sequence-numbers", Value::Array(Array(numbers)))]);
    node.call(request("com.microsoft:cancel-scheduled-message", body)).await.map(drop)
}

/// Returns up to `count` messages from a number on, in every state.
pub(super) async fn peek(node: &Node, from: i64, count: i32) -> Result<Vec<Content>, Fault> {
    let body = map([("from-sequence-number", Value::Long(from)), ("message-count", Value::Int(count))]);
    let Some(answer) = node.call(request("com.microsoft:peek-message", body)).await? else {
        return Ok(Vec::new());
    };
    let Some(Value::List(entries)) = field(&answer, "messages") else { return Err(unreadable("messages")) };
    entries
        .iter()
        .map(|entry| match field(entry, "message") {
            Some(Value::Binary(bytes)) => decode(bytes).map(Content::read),
            _ => Err(unreadable("a message")),
        })
        .collect()
}

fn decode(bytes: &[u8]) -> Result<Incoming, Fault> {
    let reader = serde_amqp::read::SliceReader::new(bytes);
    Body::<Value>::decode_message_from_reader(reader).map_err(|error| Fault::Unreadable(error.to_string()))
}

/// Deletes messages that are active and not locked; false if there were none.
pub(super) async fn delete_batch(node: &Node, count: i32, before: SystemTime) -> Result<bool, Fault> {
    let before = Value::Timestamp(Timestamp::from_milliseconds(millis(before)));
    let body = map([("message-count", Value::Int(count)), ("enqueued-time-utc", before)]);
    let Some(answer) = node.call(request("com.microsoft:batch-delete-messages", body)).await? else {
        return Ok(false);
    };
    let deleted = field(&answer, "message-count");
    Ok(!matches!(deleted, Some(Value::Int(0) | Value::Uint(0) | Value::Long(0) | Value::Ulong(0))))
}
