//! Helpers for AMQP values and messages.

use std::time::{Duration, SystemTime};

use fe2o3_amqp::types::definitions::{Error as AmqpError, ErrorCondition};
use fe2o3_amqp::types::messaging::{Body, Message};
use fe2o3_amqp::types::primitives::{OrderedMap, Symbol, Value};
use tokio::sync::oneshot;
use tokio::time::timeout;
use uuid::Uuid;

pub(super) use super::super::cache::REQUEST_TIMEOUT;
use super::super::error::{Fault, condition};

/// The time that a get waits for its first message. It is short, because a worker reserves slots for the
/// answer. A message that arrives later wakes the worker's subscription, or is found by the next get.
pub(crate) const GET_WAIT: Duration = Duration::from_millis(50);
/// A connection is given up after this time without a frame, or with a write that makes no progress.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_secs(60);
pub(super) const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
pub(super) const MAX_FRAME: u32 = 65_536;

/// A message as received from the service.
pub(crate) type Incoming = Message<Body<Value>>;
/// A message as sent to the service.
pub(crate) type Outbound = Message<Body<Value>>;

pub(crate) type Fields = OrderedMap<Value, Value>;

/// Waits for the answer of the task that owns a link.
pub(super) async fn answer<T>(answered: oneshot::Receiver<Result<T, Fault>>) -> Result<T, Fault> {
    match timeout(REQUEST_TIMEOUT, answered).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(_)) => Err(Fault::lost("the link has ended")),
        Err(_) => Err(Fault::Late),
    }
}

pub(crate) fn map<'n>(fields: impl IntoIterator<Item = (&'n str, Value)>) -> Value {
    let mut map = Fields::new();
    for (name, value) in fields {
        map.insert(Value::String(name.to_owned()), value);
    }
    Value::Map(map)
}

pub(crate) fn field<'v>(map: &'v Value, name: &str) -> Option<&'v Value> {
    match map {
        Value::Map(map) => map.get(&Value::String(name.to_owned())),
        _ => None,
    }
}

/// Returns a time in the service's format: milliseconds since 1970.
pub(crate) fn millis(at: SystemTime) -> i64 {
    let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(i64::MAX)
}

pub(crate) fn instant(millis: i64) -> SystemTime {
    let since = Duration::from_millis(u64::try_from(millis).unwrap_or_default());
    SystemTime::UNIX_EPOCH.checked_add(since).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Converts a delivery tag to the lock token: the first three fields are in little-endian byte order.
pub(crate) fn guid(tag: &[u8]) -> Option<Uuid> {
    Some(Uuid::from_bytes_le(tag.try_into().ok()?))
}

pub(crate) fn condition_of(error: &AmqpError) -> Fault {
    Fault::Refused {
        condition: name_of(&error.condition),
        description: error.description.clone().unwrap_or_default(),
    }
}

fn name_of(condition: &ErrorCondition) -> String {
    // The types offer no other way to get the name on the wire.
    let symbol = serde_amqp::to_vec(condition).and_then(|bytes| serde_amqp::from_slice::<Symbol>(&bytes));
    symbol.map_or_else(|_| condition::INTERNAL_ERROR.to_owned(), |symbol| symbol.0)
}

/// Encodes a message, for requests that carry messages.
pub(crate) fn encode(message: &Outbound) -> Result<Vec<u8>, Fault> {
    let sections = [
        message.header.as_ref().map(serde_amqp::to_vec),
        message.message_annotations.as_ref().map(serde_amqp::to_vec),
        message.properties.as_ref().map(serde_amqp::to_vec),
        message.application_properties.as_ref().map(serde_amqp::to_vec),
        Some(serde_amqp::to_vec(&message.body)),
    ];
    let sections = sections.into_iter().flatten().collect::<Result<Vec<_>, _>>();
    Ok(sections.map_err(Fault::not_sent)?.concat())
}
