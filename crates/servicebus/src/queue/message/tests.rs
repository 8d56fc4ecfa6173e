use fe2o3_amqp::types::messaging::AmqpValue;

use super::super::letter::{digest, mark};
use super::*;

const DAY: Duration = Duration::from_secs(86_400);

fn incoming(ttl: Option<u32>, life: Option<(i64, i64)>) -> Incoming {
    let mut header = Header::builder().build();
    header.ttl = ttl;
    let properties = Properties {
        creation_time: life.map(|(created, _)| Timestamp::from_milliseconds(created)),
        absolute_expiry_time: life.map(|(_, end)| Timestamp::from_milliseconds(end)),
        ..Properties::default()
    };
    Message::builder().header(header).properties(properties).body(Body::Empty).build()
}

fn outgoing(expires: Option<SystemTime>, now: SystemTime) -> Outgoing<'static> {
    Outgoing {
        content: MessageBody::Text("text"),
        id: "id",
        message_id: "id".to_owned(),
        group: None,
        inserted: Some(now),
        expires,
        visible: None,
        dequeued: 0,
        seal: None,
        now,
    }
}

#[test]
fn life_of_a_message_is_the_difference_of_two_times() {
    let ms = |days: u32| (DAY * days).as_millis() as i64;
    // A client that writes the lower 32 bits of 60 days into the header.
    let cut = incoming(Some(ms(60) as u32), Some((ms(1), ms(61))));
    assert_eq!(life_of(&cut), Some(60 * DAY));
    assert_eq!(life_of(&incoming(Some(5_000), None)), Some(Duration::from_secs(5)));
    // The sender's clock went back between the two times.
    assert_eq!(life_of(&incoming(Some(5_000), Some((ms(2), ms(1))))), Some(Duration::from_secs(5)));
    assert_eq!(life_of(&incoming(None, Some((ms(1), ms(3))))), Some(2 * DAY));
    assert_eq!(life_of(&incoming(Some(u32::MAX), None)), None);
}

// On Windows, five seconds after the last time panicked, and so did each get that met the message.
#[test]
fn times_of_a_sender_end_with_the_year_9999() {
    let last = instant(LAST_EXPIRY);
    for own in [910_692_730_085_477, i64::MAX] {
        let mut message = incoming(Some(5_000), None);
        let properties = ApplicationProperties::builder().insert(EXPIRES, own).insert(INSERTED, own);
        message.application_properties = Some(properties.build());
        let annotations = MessageAnnotations::builder().insert(ENQUEUED, Value::Long(1_000));
        message.message_annotations = Some(annotations.build());
        let read = Content::read(message);
        assert_eq!(read.expires, Some(last), "{own}");
        assert_eq!(read.inserted, instant(1_000), "{own}");
    }
}

// A tool sent a copy of a letter with another body, and the copy had the original number of that letter.
#[test]
fn text_of_a_letter_stands_for_the_body_that_it_replaces() {
    for (body, expected) in [("sent", Some("last text")), ("edited", None)] {
        let mut message = incoming(None, None);
        message.body = Body::Value(AmqpValue(Value::String(body.to_owned())));
        let annotations = MessageAnnotations::builder().insert("x-opt-sequence-number", Value::Long(7));
        message.message_annotations = Some(annotations.insert(ENQUEUED, Value::Long(1_000)).build());
        let properties = ApplicationProperties::builder().insert(LETTER, mark(7, instant(1_000)));
        let properties = properties.insert(TEXT, "last text".to_owned()).insert(BODY, digest("sent"));
        message.application_properties = Some(properties.build());
        assert_eq!(Content::read(message).letter.as_deref(), expected, "{body}");
    }
}

#[test]
fn message_has_its_own_life_and_none_of_the_message_that_it_replaces() {
    let start = SystemTime::UNIX_EPOCH + 20_000 * DAY;
    let replaced = || incoming(Some(1), Some((1, 2))).properties;
    for life in [Duration::from_millis(1), DAY, 60 * DAY] {
        let sent = outgoing(Some(start + life), start).message(replaced(), None);
        let properties = sent.properties.unwrap();
        let (created, end) = (properties.creation_time.unwrap(), properties.absolute_expiry_time.unwrap());
        assert_eq!(created.milliseconds(), millis(start));
        assert_eq!(end.milliseconds(), millis(start + life));
        let ttl = u32::try_from(life.as_millis()).unwrap_or(u32::MAX);
        assert_eq!(sent.header.unwrap().ttl, Some(ttl), "{life:?}");
    }
    let endless = outgoing(None, start).message(replaced(), None);
    let properties = endless.properties.unwrap();
    assert_eq!(endless.header.unwrap().ttl, None);
    assert_eq!(properties.creation_time, None);
    assert_eq!(properties.absolute_expiry_time, None);
    let far = outgoing(Some(start + 100_000_000 * DAY), start).message(None, None);
    let end = far.properties.unwrap().absolute_expiry_time.unwrap();
    assert_eq!(end.milliseconds(), LAST_EXPIRY);
}

// It began with the send, so a delayed message of another program seemed to be over before its delay.
#[test]
fn life_of_a_delayed_message_begins_when_its_delay_is_over() {
    for (state, end) in [(0, 6_000), (2, 95_000)] {
        let mut message = incoming(Some(5_000), None);
        let at = |millis| Value::Timestamp(Timestamp::from_milliseconds(millis));
        let annotations = MessageAnnotations::builder().insert(ENQUEUED, at(1_000));
        let annotations = annotations.insert("x-opt-scheduled-enqueue-time", at(90_000));
        message.message_annotations =
            Some(annotations.insert("x-opt-message-state", Value::Int(state)).build());
        assert_eq!(Content::read(message).expires, Some(instant(end)), "{state}");
    }
}
