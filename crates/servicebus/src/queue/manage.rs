//! The requests to a queue's management node.

use std::time::{Duration, SystemTime};

use fe2o3_amqp::types::messaging::message::DecodeIntoMessage as _;
use fe2o3_amqp::types::messaging::{ApplicationProperties, Body, Message, MessageAnnotations};
use fe2o3_amqp::types::primitives::{Array, Binary, Timestamp, Uuid as AmqpUuid, Value};
use serde_amqp::de::Deserializer;
use serde_amqp::descriptor::Descriptor;
use serde_amqp::read::SliceReader;
use serde_amqp::serde::Deserialize as _;
use tokio::time::{Instant, sleep};
use uuid::Uuid;

use super::super::amqp::nesting::{Nesting, TOO_DEEP};
use super::super::amqp::receiver::ReceiveLink;
use super::super::amqp::requests::{Node, NodeRequest};
use super::super::amqp::settlement::Settlement;
use super::super::amqp::{Outbound, encode, field, instant, map, millis};
use super::super::error::Fault;
use super::message::Content;

pub(super) const PAGE_SIZE: i32 = 100;
/// The time after which a busy service says, in the text of its answer, that it can be asked again.
const BUSY_PAUSE: Duration = Duration::from_secs(2);
/// The pause after each page of a walk. On the tier Standard, a namespace has a thousand credits a second for
/// all its operations, and each message that a peek returns costs one. A walk takes half of them.
const PAGE_PAUSE: Duration = Duration::from_millis(200);
/// The retries of a request of a walk while the service is too busy. The pause doubles each time.
const BUSY_RETRIES: u32 = 5;
const PEEK_OPERATION: &str = "com.microsoft:peek-message";
/// The descriptor codes of two sections of a message.
const ANNOTATIONS_SECTION: u64 = 0x72;
const PROPERTIES_SECTION: u64 = 0x74;

fn request(operation: &'static str, body: Value) -> NodeRequest {
    NodeRequest { operation, properties: Vec::new(), body }
}

fn tokens(token: Uuid) -> Value {
    Value::Array(Array(vec![Value::Uuid(AmqpUuid::from(*token.as_bytes()))]))
}

/// Returns the first value of the array `name` in an answer.
fn first<'v>(answer: Option<&'v Value>, name: &str) -> Option<&'v Value> {
    match field(answer?, name)? {
        Value::Array(values) => values.0.first(),
        _ => None,
    }
}

fn unreadable(what: &str) -> Fault {
    Fault::unreadable(format!("the answer lacks {what}"))
}

pub(super) async fn renew(node: &Node, token: Uuid) -> Result<SystemTime, Fault> {
    let body = map([("lock-tokens", tokens(token))]);
    let answer = node.call(request("com.microsoft:renew-lock", body)).await?;
    match first(answer.as_ref(), "expirations") {
        Some(Value::Timestamp(end)) => Ok(instant(end.milliseconds())),
        _ => Err(unreadable("the end of the lock")),
    }
}

/// Returns the request that settles a message by its lock token.
pub(super) fn settle_request(token: Uuid, how: &Settlement) -> NodeRequest {
    request("com.microsoft:update-disposition", map(disposition(token, how)))
}

/// Returns the request that settles a message of a session by its lock token.
pub(super) fn session_settle_request(session: &str, token: Uuid, how: &Settlement) -> NodeRequest {
    let session = ("session-id", Value::String(session.to_owned()));
    let body = disposition(token, how).into_iter().chain([session]);
    request("com.microsoft:update-disposition", map(body))
}

fn disposition(token: Uuid, how: &Settlement) -> Vec<(&'static str, Value)> {
    let text = |text: &str| Value::String(text.to_owned());
    let status = |status: &str| ("disposition-status", text(status));
    let tokens = ("lock-tokens", tokens(token));
    match how {
        Settlement::Complete => vec![status("completed"), tokens],
        // The management node cannot release a message.
        Settlement::Abandon | Settlement::Release => vec![status("abandoned"), tokens],
        Settlement::DeadLetter(letter) => vec![
            status("suspended"),
            tokens,
            ("deadletter-reason", text(&letter.reason)),
            ("deadletter-description", text(&letter.description)),
            ("properties-to-modify", map(letter.properties.iter().map(|(name, value)| (*name, text(value))))),
        ],
    }
}

pub(super) async fn schedule(node: &Node, id: &str, message: &Outbound) -> Result<i64, Fault> {
    let mut entry = vec![
        ("message-id", Value::String(id.to_owned())),
        ("message", Value::Binary(Binary::from(encode(message)?))),
    ];
    let session = message.properties.as_ref().and_then(|properties| properties.group_id.clone());
    entry.extend(session.map(|session| ("session-id", Value::String(session))));
    let entry = map(entry);
    let body = map([("messages", Value::List(vec![entry]))]);
    let answer = node.call(request("com.microsoft:schedule-message", body)).await?;
    match first(answer.as_ref(), "sequence-numbers") {
        Some(Value::Long(number)) => Ok(*number),
        _ => Err(unreadable("the number of the message")),
    }
}

pub(super) async fn cancel(node: &Node, number: i64) -> Result<(), Fault> {
    let body = map([("sequence-numbers", Value::Array(Array(vec![Value::Long(number)])))]);
    node.call(request("com.microsoft:cancel-scheduled-message", body)).await.map(drop)
}

/// Peeks at a message on behalf of a link, which counts as use of the link.
pub(super) async fn keep_link_alive(node: &Node, link: &ReceiveLink) -> Result<(), Fault> {
    let body = map([("from-sequence-number", Value::Long(0)), ("message-count", Value::Int(1))]);
    let properties = vec![link.association()];
    node.call(NodeRequest { operation: PEEK_OPERATION, properties, body }).await.map(drop)
}

/// Returns up to `count` messages in any state, beginning with the number `from`.
pub(super) async fn peek(node: &Node, from: i64, count: i32) -> Result<Vec<Content>, Fault> {
    let body = map([("from-sequence-number", Value::Long(from)), ("message-count", Value::Int(count))]);
    let answer = match node.call(request(PEEK_OPERATION, body)).await {
        Ok(Some(answer)) => answer,
        Ok(None) => return Ok(Vec::new()),
        // Other clients also take this for the end of the queue.
        Err(fault) if fault.is_missing_message() => return Ok(Vec::new()),
        Err(fault) => return Err(fault),
    };
    let Some(Value::List(entries)) = field(&answer, "messages") else {
        return Err(unreadable("messages"));
    };
    let read = |entry| match field(entry, "message") {
        Some(Value::Binary(bytes)) => content(bytes),
        _ => Err(unreadable("a message")),
    };
    entries.iter().map(read).collect()
}

fn content(bytes: &[u8]) -> Result<Content, Fault> {
    if let Some(end) = Nesting::default().take(bytes) {
        return partial_content(&bytes[..end], TOO_DEEP);
    }
    match Body::decode_message_from_reader(SliceReader::new(bytes)) {
        Ok(message) => Ok(Content::read(message)),
        Err(error) => partial_content(bytes, &error.to_string()),
    }
}

/// Reads as much of a message as can be decoded. The service writes its annotations before the content.
fn partial_content(bytes: &[u8], reason: &str) -> Result<Content, Fault> {
    let (mut annotations, mut properties) = (MessageAnnotations::builder(), ApplicationProperties::builder());
    let mut sections = Deserializer::new(SliceReader::new(bytes));
    while let Ok(Value::Described(section)) = Value::deserialize(&mut sections) {
        let (Descriptor::Code(code), Value::Map(fields)) = (section.descriptor, section.value) else {
            continue;
        };
        for field in fields {
            match (code, field) {
                (ANNOTATIONS_SECTION, (Value::Symbol(name), value)) => {
                    annotations = annotations.insert(name, value)
                }
                (PROPERTIES_SECTION, (Value::String(name), Value::String(value))) => {
                    properties = properties.insert(name, value);
                }
                _ => {}
            }
        }
    }
    let message = Message::builder().message_annotations(annotations.build());
    let message = message.application_properties(properties.build()).body(Body::Empty).build();
    let content = Content { text: Err(reason.to_owned()), is_whole: false, ..Content::read(message) };
    // Without a number, it is unknown where the next page begins.
    if content.sequence == 0 { Err(Fault::unreadable(reason)) } else { Ok(content) }
}

/// Pages with the messages of a queue in every state: all that are in the queue when the first page is read,
/// and perhaps some that arrive later. The end is fixed after the first page, so a walk ends even if messages
/// keep arriving.
pub(super) struct Pages {
    node: Node,
    from: i64,
    /// The number of the last message; known after the first page.
    end: Option<i64>,
    /// The pause before each page except the first.
    pause: Duration,
}

impl Pages {
    pub(super) fn of(node: Node) -> Self {
        Self { node, from: 0, end: None, pause: Duration::ZERO }
    }

    /// Limits the walk to half of the credits of a namespace of the tier Standard from its first page on.
    /// Other walks do so only after the service was too busy.
    pub(super) fn in_background(self) -> Self {
        Self { pause: PAGE_PAUSE, ..self }
    }

    /// Returns the next page; it is empty after the last one.
    pub(super) async fn next(&mut self) -> Result<Vec<Content>, Fault> {
        if self.end.is_some_and(|end| end < self.from) {
            return Ok(Vec::new());
        }
        if self.end.is_some() {
            sleep(self.pause).await;
        }
        let asked = Instant::now();
        let page = retry_while_busy(|| peek(&self.node, self.from, PAGE_SIZE)).await?;
        if asked.elapsed() >= BUSY_PAUSE {
            self.pause = PAGE_PAUSE;
        }
        if let Some(Content { sequence, .. }) = page.last() {
            self.from = sequence.saturating_add(1);
            if self.end.is_none() {
                let last = last_from(&self.node, self.from).await?;
                self.end = Some(last.map_or(*sequence, |last| last.sequence));
            }
        }
        Ok(page)
    }
}

/// Makes a request, and repeats it while the service is too busy.
pub(super) async fn retry_while_busy<T, R: Future<Output = Result<T, Fault>>>(
    request: impl Fn() -> R,
) -> Result<T, Fault> {
    for tries in 0..BUSY_RETRIES {
        match request().await {
            Err(fault) if fault.is_throttled() => sleep(BUSY_PAUSE * 2_u32.pow(tries)).await,
            answer => return answer,
        }
    }
    request().await
}

/// Returns the last message of a queue, or `None` if it has none with the number `from` or a higher one.
/// Peeks at single messages, at distances that double until no message is found, and halve from then on.
pub(super) async fn last_from(node: &Node, mut from: i64) -> Result<Option<Content>, Fault> {
    let (mut last, mut distance, mut is_growing) = (None, 0, true);
    loop {
        let found = retry_while_busy(|| peek(node, from.saturating_add(distance), 1)).await?.pop();
        // A partitioned queue may answer with a message of another partition.
        match found.filter(|found| found.sequence >= from) {
            Some(found) => {
                from = found.sequence.saturating_add(1);
                last = Some(found);
            }
            None => is_growing = false,
        }
        if !is_growing && distance == 0 {
            return Ok(last);
        }
        distance = if is_growing { distance.saturating_mul(2).max(1) } else { distance / 2 };
    }
}

/// Deletes up to `count` messages that are active and not locked; returns their number.
pub(super) async fn delete_batch(node: &Node, count: i32, before: SystemTime) -> Result<i64, Fault> {
    let before = Value::Timestamp(Timestamp::from_milliseconds(millis(before)));
    let body = map([("message-count", Value::Int(count)), ("enqueued-time-utc", before)]);
    let Some(answer) = node.call(request("com.microsoft:batch-delete-messages", body)).await? else {
        return Ok(0);
    };
    match field(&answer, "message-count") {
        Some(Value::Int(deleted)) => Ok((*deleted).into()),
        Some(Value::Uint(deleted)) => Ok((*deleted).into()),
        Some(Value::Long(deleted)) => Ok(*deleted),
        Some(Value::Ulong(deleted)) => Ok(i64::try_from(*deleted).unwrap_or(i64::MAX)),
        _ => Err(unreadable("the number of messages that were deleted")),
    }
}
