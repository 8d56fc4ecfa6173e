//! Writes events.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::text::xml_safe;
use super::{Checkpoint, Envelope, EnvelopeError, History, Payload, StoredReference};

/// The attributes that the framework interprets. All others are extensions, which it keeps unchanged.
const KNOWN: &[&str] = &[
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "key",
    "datacontenttype",
    "schemaversion",
    "data",
    "data_base64",
    "dataref",
    "datasize",
    "datasha256",
    "traceparent",
    "notbefore",
    "fencebase",
    "checkpoint",
    "checkpointref",
    "checkpointsize",
    "checkpointsha256",
    "attempts",
    "excused",
    "deliverycount",
    "handlerfinished",
    "deferred",
    "deferredfor",
    "deferredsince",
    "lasterror",
    "deadletterreason",
    "deadletterqueue",
    "deadlettertime",
    "deadlettermessage",
    "deadletterdeliveries",
    "deadletterworker",
    "deadletterpast",
];

pub(super) fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

/// The initial capacity, in bytes, for the attributes of an event.
const ATTRIBUTE_BYTES: usize = 512;

/// Builds the name of an attribute with its comma, quotes and colon, so that a single call writes all of it.
macro_rules! name {
    ($name:literal) => {
        concat!(",\"", $name, "\":")
    };
}

pub(super) fn to_json(envelope: &Envelope) -> Result<String, EnvelopeError> {
    let payload_bytes = match &envelope.payload {
        Payload::Json(data) => data.as_bytes().len(),
        Payload::Binary(bytes) => bytes.len() / 3 * 4,
        Payload::None | Payload::Stored(_) => 0,
    };
    let mut event = EventWriter(String::with_capacity(ATTRIBUTE_BYTES + payload_bytes));
    event.0.push_str("{\"specversion\":\"1.0\"");
    event.text(name!("id"), &envelope.id);
    event.text(name!("source"), &envelope.source);
    event.text(name!("type"), &envelope.kind);
    event.optional_text(name!("time"), envelope.time.as_deref());
    event.optional_text(name!("key"), envelope.key.as_deref());
    event.optional_text(name!("datacontenttype"), envelope.content_type.as_deref());
    if let Some(version) = envelope.version {
        event.number(name!("schemaversion"), version.into());
    }
    event.optional_text(name!("traceparent"), envelope.traceparent.as_deref());
    event.optional_text(name!("notbefore"), envelope.not_before.as_deref());
    if envelope.fence_base > 0 {
        event.number(name!("fencebase"), envelope.fence_base);
    }
    history(&mut event, &envelope.history);
    if let Some(note) = &envelope.dead_letter {
        event.text(name!("deadletterreason"), &note.reason);
        event.text(name!("deadletterqueue"), &note.queue);
        event.text(name!("deadlettertime"), &note.time);
        event.optional_text(name!("deadlettermessage"), note.message.as_deref());
        event.number(name!("deadletterdeliveries"), note.deliveries.into());
        event.optional_text(name!("deadletterworker"), note.worker.as_deref());
    }
    for (name, value) in &envelope.extensions {
        event.extension(name, value.get());
    }
    match &envelope.payload {
        Payload::None => {}
        Payload::Json(data) => event.json(name!("data"), data.as_str()?),
        Payload::Binary(bytes) => event.text(name!("data_base64"), &STANDARD.encode(bytes)),
        Payload::Stored(reference) => {
            event.reference(name!("dataref"), name!("datasize"), name!("datasha256"), reference)
        }
    }
    Ok(event.end())
}

fn history(event: &mut EventWriter, history: &History) {
    event.count(name!("attempts"), history.attempts);
    event.count(name!("excused"), history.uncounted);
    event.count(name!("deliverycount"), history.delivery);
    event.optional_text(name!("handlerfinished"), history.finished.as_deref());
    if let Some(deferral) = &history.deferral {
        event.count(name!("deferred"), deferral.count);
        event.text(name!("deferredfor"), &deferral.cause);
        event.text(name!("deferredsince"), &deferral.since);
    }
    event.optional_text(name!("lasterror"), history.last_error.as_deref());
    match &history.checkpoint {
        None => {}
        Some(Checkpoint::Inline(json)) => event.text(name!("checkpoint"), json),
        Some(Checkpoint::Stored(reference)) => {
            event.reference(
                name!("checkpointref"),
                name!("checkpointsize"),
                name!("checkpointsha256"),
                reference,
            );
        }
    }
    event.optional_text(name!("deadletterpast"), history.past.as_deref());
}

/// Writes the JSON object of an event. It is written by hand because every message passes here, and because a
/// payload that is already JSON is copied without being parsed. The names come from [`name`].
struct EventWriter(String);

impl EventWriter {
    /// Writes an attribute whose name the sender chose.
    fn extension(&mut self, name: &str, json: &str) {
        self.0.push(',');
        self.string(name);
        self.0.push(':');
        self.0.push_str(json);
    }

    fn text(&mut self, name: &'static str, text: &str) {
        self.0.push_str(name);
        self.string(text);
    }

    fn optional_text(&mut self, name: &'static str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    fn number(&mut self, name: &'static str, number: u64) {
        // Writing into memory cannot fail.
        let _ = write!(self.0, "{name}{number}");
    }

    fn count(&mut self, name: &'static str, count: u32) {
        if count > 0 {
            self.number(name, count.into());
        }
    }

    fn reference(
        &mut self,
        place: &'static str,
        size: &'static str,
        sha256: &'static str,
        reference: &StoredReference,
    ) {
        self.text(place, &reference.to_string());
        self.number(size, reference.size);
        self.text(sha256, &reference.sha256.to_string());
    }

    fn json(&mut self, name: &'static str, json: &str) {
        self.0.push_str(name);
        self.0.push_str(json);
    }

    fn string(&mut self, text: &str) {
        // The loop has no early exit, so that the compiler can vectorise it.
        let needs_escapes = |suspect, byte| suspect | (byte < b' ') | (byte == b'"') | (byte == b'\\');
        if !text.bytes().fold(false, needs_escapes) {
            self.0.push('"');
            self.0.push_str(text);
            self.0.push('"');
        } else {
            // serde_json writes the escapes.
            self.0.push_str(&serde_json::Value::from(text).to_string());
        }
    }

    fn end(mut self) -> String {
        self.0.push('}');
        xml_safe(self.0)
    }
}
