//! Converts messages of the port to AMQP messages and back.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fe2o3_amqp::types::messaging::annotations::AnnotationKey;
use fe2o3_amqp::types::messaging::{
    ApplicationProperties, Body, Header, Message, MessageAnnotations, MessageId as AmqpId, Properties,
};
use fe2o3_amqp::types::primitives::{SimpleValue, Symbol, Timestamp, Value};

use super::super::amqp::{Incoming, Outbound, instant, millis};
use super::body::{MessageBody, text_of};
use super::letter::{is_digest, is_mark_of};
use jobqueue_storage::{DeadLetterCause, MessageId};

/// The latest expiry that the service's clients send: the last day of 9999, in milliseconds since 1970.
const LAST_EXPIRY: i64 = 253_402_243_199_000;
/// The longest message id: an id of the service's maximum length, with a number and a time as its prefix.
const MAX_ID_BYTES: usize = 170;
/// The greatest difference between two clocks that are considered to agree.
const MAX_SKEW: Duration = Duration::from_secs(5);
const CONTENT_TYPE: &str = "application/cloudevents+json";

/// Application properties of the framework. Properties of other programs are kept when a message is copied.
const ID: &str = "jobqueue-id";
const INSERTED: &str = "jobqueue-inserted";
const EXPIRES: &str = "jobqueue-expires";
const DEQUEUED: &str = "jobqueue-dequeued";
/// The proof that the framework wrote `DEQUEUED`.
const SEAL: &str = "jobqueue-seal";
/// The text of a dead letter, and the mark of its message. A tool that resends a letter unchanged sends both.
pub(super) const TEXT: &str = "jobqueue-text";
pub(super) const LETTER: &str = "jobqueue-letter";
/// The digest of the body that such a text replaces.
pub(super) const BODY: &str = "jobqueue-body";

/// The annotation with the time at which a message became visible, by the service's clock. It does not change
/// between deliveries, nor when the message is dead-lettered.
const ENQUEUED: &str = "x-opt-enqueued-time";

/// The states of a message in a peek. A message that another program has deferred has a third one.
const ACTIVE: i64 = 0;
const SCHEDULED: i64 = 2;

/// Application properties that the service sets on a dead letter.
pub(super) const REASON: &str = "DeadLetterReason";
pub(super) const DESCRIPTION: &str = "DeadLetterErrorDescription";

#[derive(Debug, Clone)]
pub(super) struct Outgoing<'t> {
    pub(super) content: MessageBody<'t>,
    pub(super) id: &'t str,
    /// The `message-id`, by which the service detects duplicates.
    pub(super) message_id: String,
    pub(super) group: Option<String>,
    /// `None` for a new message without a delay: the time at which the service enqueues it is exact.
    pub(super) inserted: Option<SystemTime>,
    pub(super) expires: Option<SystemTime>,
    pub(super) visible: Option<SystemTime>,
    /// The number of deliveries of the messages that this one replaces.
    pub(super) dequeued: u32,
    /// The proof of `dequeued`; `None` for a message that replaces no other.
    pub(super) seal: Option<String>,
    pub(super) now: SystemTime,
}

/// The number of deliveries of replaced messages that a message claims.
#[derive(Debug)]
pub(super) struct Replaced {
    pub(super) dequeued: u32,
    pub(super) seal: String,
}

impl Outgoing<'_> {
    /// Returns the message; `properties` and `application` come from the message that it replaces.
    pub(super) fn message(
        &self,
        properties: Option<Properties>,
        application: Option<ApplicationProperties>,
    ) -> Outbound {
        let mut properties = properties.unwrap_or_default();
        properties.message_id = Some(AmqpId::String(self.message_id.clone()));
        properties.group_id = self.group.clone().or(properties.group_id);
        if let MessageBody::Text(_) = self.content {
            properties.content_type.get_or_insert_with(|| Symbol::from(CONTENT_TYPE));
        }
        let mut fields = application.unwrap_or_default();
        // They may come from a dead letter that was resent unchanged.
        for name in [LETTER, TEXT, BODY, REASON, DESCRIPTION, INSERTED, EXPIRES, DEQUEUED, SEAL] {
            fields.0.swap_remove(name);
        }
        fields.0.insert(ID.to_owned(), SimpleValue::String(self.id.to_owned()));
        let times = [(INSERTED, self.inserted), (EXPIRES, self.expires)];
        for (name, time) in times.into_iter().filter_map(|(name, time)| Some((name, time?))) {
            fields.0.insert(name.to_owned(), decimal(millis(time)));
        }
        if let Some(seal) = &self.seal {
            fields.0.insert(DEQUEUED.to_owned(), decimal(self.dequeued.into()));
            fields.0.insert(SEAL.to_owned(), SimpleValue::String(seal.clone()));
        }
        let mut header = Header::builder().durable(true).build();
        self.write_life(&mut header, &mut properties);
        let mut message = Message::builder()
            .header(header)
            .properties(properties)
            .application_properties(fields)
            .body(self.content.body())
            .build();
        message.message_annotations = self.visible.map(|at| {
            let at = Value::Timestamp(Timestamp::from_milliseconds(millis(at)));
            MessageAnnotations::builder().insert("x-opt-scheduled-enqueue-time", at).build()
        });
        message
    }

    /// Writes the time to live, replacing any earlier one: in the header, which can express 49 days, and as
    /// the difference of two times, which the service and its clients prefer if it is present.
    fn write_life(&self, header: &mut Header, properties: &mut Properties) {
        // The service counts from the time at which the message becomes visible.
        let from = millis(self.visible.unwrap_or(self.now));
        let end = self.expires.map(|expires| millis(expires).min(LAST_EXPIRY).max(from.saturating_add(1)));
        header.ttl = end.map(|end| u32::try_from(end - from).unwrap_or(u32::MAX));
        properties.creation_time = end.map(|_| Timestamp::from_milliseconds(from));
        properties.absolute_expiry_time = end.map(Timestamp::from_milliseconds);
    }
}

#[derive(Debug)]
pub(super) struct Content {
    pub(super) id: MessageId,
    /// The text of the body, or of the dead letter that a tool has resent.
    pub(super) text: Result<String, String>,
    /// The digest of the body, if the text of a dead letter replaces it.
    pub(super) body_digest: Option<String>,
    /// The body, if it is not a text.
    pub(super) other: Option<Arc<Body<Value>>>,
    /// False if only a part of the message could be decoded.
    pub(super) is_whole: bool,
    pub(super) inserted: SystemTime,
    /// The time at which the message became visible, by the service's clock.
    pub(super) enqueued: SystemTime,
    pub(super) expires: Option<SystemTime>,
    /// The number of earlier deliveries. It includes the deliveries of replaced messages once they are
    /// [counted](super::replaced::count).
    pub(super) delivered: u32,
    /// The replaced messages that this one claims; unproven until they are counted.
    pub(super) replaced: Option<Replaced>,
    /// The number of earlier deliveries of this message alone, as counted by the service.
    pub(super) delivered_here: u32,
    pub(super) sequence: i64,
    /// The message's number in its original queue, if the service returns it.
    pub(super) first_sequence: Option<i64>,
    /// The text that was stored in its properties when it was dead-lettered.
    pub(super) letter: Option<String>,
    pub(super) cause: Option<DeadLetterCause>,
    pub(super) locked_until: Option<SystemTime>,
    /// True for a message that the service would deliver now, and for one that it has delivered under a lock.
    pub(super) is_active: bool,
    /// True for a message whose delay is not over.
    pub(super) is_scheduled: bool,
    /// The end of the delay, which may be over.
    pub(super) scheduled_for: Option<SystemTime>,
    pub(super) properties: Option<Properties>,
    pub(super) application_properties: Option<ApplicationProperties>,
}

impl Content {
    /// Returns the id by which the port knows the message. That of a dead letter begins with its number,
    /// because several may have the same id: a tool that resends a letter also resends the id.
    pub(super) fn port_id(&self, is_dead_letter: bool) -> MessageId {
        if is_dead_letter {
            return MessageId::new(format!("{}/{}", self.sequence, self.id));
        }
        self.id.clone()
    }

    pub(super) fn read(mut message: Incoming) -> Self {
        let (body, other) = text_of(std::mem::replace(&mut message.body, Body::Empty));
        let annotation = |name: &str| {
            let annotations = message.message_annotations.as_ref()?;
            annotations.get(&name as &dyn AnnotationKey).and_then(number)
        };
        let property = |name: &str| integer(message.application_properties.as_ref()?.get(name)?);
        let text = |name: &str| match message.application_properties.as_ref()?.get(name)? {
            SimpleValue::String(text) => Some(text.clone()),
            _ => None,
        };
        let sequence = annotation("x-opt-sequence-number").unwrap_or_default();
        let first_sequence = annotation("x-opt-enqueue-sequence-number").filter(|number| *number > 0);
        let enqueued = annotation(ENQUEUED).map_or_else(SystemTime::now, time);
        let state = annotation("x-opt-message-state").unwrap_or_default();
        let scheduled_for = annotation("x-opt-scheduled-enqueue-time").map(time);
        // The time to live of a delayed message begins when its delay is over.
        let begin = scheduled_for.filter(|_| state == SCHEDULED).unwrap_or(enqueued);
        let end = life_of(&message).and_then(|life| begin.checked_add(life));
        let delivered_here = message.header.as_ref().map_or(0, |header| header.delivery_count);
        let dequeued = property(DEQUEUED).and_then(|count| u32::try_from(count).ok());
        let (body_digest, letter_text) = text(BODY).filter(|of| is_digest(of, &body)).zip(text(TEXT)).unzip();
        let number = first_sequence.unwrap_or(sequence);
        let cause =
            text(REASON).map(|reason| DeadLetterCause::new(reason).with_description(text(DESCRIPTION)));
        Self {
            id: id_of(&message, number, annotation(ENQUEUED).unwrap_or_default()),
            is_whole: true,
            inserted: insertion(enqueued, property(INSERTED).map(time)),
            enqueued,
            expires: end.map(|end| expiry(end, property(EXPIRES).map(time))),
            delivered: delivered_here,
            replaced: dequeued
                .zip(text(SEAL).filter(|_| letter_text.is_none()))
                .map(|(dequeued, seal)| Replaced { dequeued, seal }),
            delivered_here,
            sequence,
            first_sequence,
            letter: text(LETTER)
                .filter(|of| is_mark_of(of, number, enqueued))
                .and_then(|_| letter_text.clone()),
            cause,
            locked_until: annotation("x-opt-locked-until").map(instant),
            is_active: state == ACTIVE,
            is_scheduled: state == SCHEDULED,
            scheduled_for,
            text: letter_text.map_or(body, Ok),
            body_digest,
            other,
            properties: message.properties,
            application_properties: message.application_properties,
        }
    }
}

/// Reads the number in a property. Other tools may resend it in another type.
fn integer(value: &SimpleValue) -> Option<i64> {
    match value {
        SimpleValue::Long(number) => Some(*number),
        SimpleValue::Int(number) => Some(i64::from(*number)),
        SimpleValue::Uint(number) => Some(i64::from(*number)),
        SimpleValue::Ulong(number) => i64::try_from(*number).ok(),
        SimpleValue::String(number) => number.parse().ok(),
        _ => None,
    }
}

/// Returns the time at which a message was inserted. A property later than the enqueued time is not believed,
/// because the sender's clock may be ahead.
fn insertion(enqueued: SystemTime, of_sender: Option<SystemTime>) -> SystemTime {
    of_sender.filter(|at| *at <= enqueued + MAX_SKEW).unwrap_or(enqueued)
}

/// Returns the time at which a message expires. The service removes it at `end`, by the service's clock. The
/// property of the sender is more exact, but is ignored if the sender's clock is behind, or if the message
/// has no time to live: a tool that resends a message also resends the property.
fn expiry(end: SystemTime, of_sender: Option<SystemTime>) -> SystemTime {
    of_sender.filter(|own| end <= *own + MAX_SKEW).unwrap_or(end)
}

/// Returns the time to live of a message as the service and its clients read it: the difference of two times,
/// or, without them, the value of the header. A header with the maximum value and no difference says only
/// that the time to live is long.
fn life_of(message: &Incoming) -> Option<Duration> {
    let difference = || {
        let properties = message.properties.as_ref()?;
        let (created, end) = (properties.creation_time.as_ref()?, properties.absolute_expiry_time.as_ref()?);
        let life = end.milliseconds().checked_sub(created.milliseconds())?;
        u64::try_from(life).ok().filter(|life| *life > 0)
    };
    let of_header = || message.header.as_ref()?.ttl.filter(|ttl| *ttl < u32::MAX).map(u64::from);
    difference().or_else(of_header).map(Duration::from_millis)
}

/// Returns the framework's id of a message; several messages may have the same. The id of another program's
/// message is its number and time, followed by the program's own id if that is usable: producers repeat ids
/// or set none, and numbers restart when a queue is recreated and may come from several queues that forward.
fn id_of(message: &Incoming, sequence: i64, enqueued: i64) -> MessageId {
    let own = message.application_properties.as_ref().and_then(|properties| properties.get(ID));
    if let Some(SimpleValue::String(id)) = own
        && is_id(id)
    {
        return MessageId::new(id);
    }
    match message.properties.as_ref().and_then(|properties| properties.message_id.as_ref()) {
        Some(AmqpId::String(id)) if is_id(id) => MessageId::new(format!("{sequence}-{enqueued}/{id}")),
        _ => MessageId::new(format!("{sequence}-{enqueued}")),
    }
}

/// Returns whether a text has the form of an id, including the ids of other programs with their prefix.
fn is_id(text: &str) -> bool {
    (1..=MAX_ID_BYTES).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns a number as a text, which every client can read and resend. The Python SDK sends 32-bit integers.
fn decimal(number: i64) -> SimpleValue {
    SimpleValue::String(number.to_string())
}

fn number(value: &Value) -> Option<i64> {
    match value {
        Value::Timestamp(at) => Some(at.milliseconds()),
        Value::Long(number) => Some(*number),
        Value::Int(number) => Some(i64::from(*number)),
        Value::Uint(number) => Some(i64::from(*number)),
        _ => None,
    }
}

/// Converts a time that any sender may have written. It is capped, so that adding to it never overflows.
fn time(millis: i64) -> SystemTime {
    instant(millis.min(LAST_EXPIRY))
}

/// Returns whether a sequence number belongs to a partition, which is in the upper 16 bits.
pub(super) fn is_of_partition(sequence: i64) -> bool {
    sequence >> 48 != 0
}

#[cfg(test)]
mod tests;
