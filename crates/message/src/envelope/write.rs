//! Writes events.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::text::{TextError, xml_safe};
use super::{Checkpoint, Envelope, EnvelopeError, History, Payload, StoredReference};

/// The attributes with a meaning to the framework; all others are extensions that are kept unchanged.
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

/// The number of bytes reserved for the attributes that most events have.
const ATTRIBUTES: usize = 512;

pub(super) fn to_json(envelope: &Envelope) -> Result<String, EnvelopeError> {
    let room = match &envelope.payload {
        Payload::Json(data) => data.as_bytes().len(),
        Payload::Binary(bytes) => bytes.len() / 3 * 4,
        Payload::None | Payload::Stored(_) => 0,
    };
    let mut event = Event(Vec::with_capacity(ATTRIBUTES + room));
    event.text("specversion", "1.0");
    event.text("id", &envelope.id);
    event.text("source", &envelope.source);
    event.text("type", &envelope.kind);
    event.some("time", envelope.time.as_deref());
    event.some("key", envelope.key.as_deref());
    event.some("datacontenttype", envelope.content_type.as_deref());
    if let Some(version) = envelope.version {
        event.number("schemaversion", version.into());
    }
    event.some("traceparent", envelope.traceparent.as_deref());
    event.some("notbefore", envelope.not_before.as_deref());
    if envelope.fence_base > 0 {
        event.number("fencebase", envelope.fence_base);
    }
    history(&mut event, &envelope.history);
    if let Some(note) = &envelope.dead_letter {
        event.text("deadletterreason", &note.reason);
        event.text("deadletterqueue", &note.queue);
        event.text("deadlettertime", &note.time);
        event.some("deadlettermessage", note.message.as_deref());
        event.number("deadletterdeliveries", note.deliveries.into());
        event.some("deadletterworker", note.worker.as_deref());
    }
    for (name, value) in &envelope.extensions {
        event.extension(name, value.get().as_bytes());
    }
    match &envelope.payload {
        Payload::None => {}
        Payload::Json(data) => event.json("data", data.as_bytes()),
        Payload::Binary(bytes) => event.text("data_base64", &STANDARD.encode(bytes)),
        Payload::Stored(reference) => event.reference("dataref", "datasize", "datasha256", reference),
    }
    event.end()
}

fn history(event: &mut Event, history: &History) {
    event.count("attempts", history.attempts);
    event.count("excused", history.uncounted);
    event.count("deliverycount", history.delivery);
    event.some("handlerfinished", history.finished.as_deref());
    if let Some(deferral) = &history.deferral {
        event.count("deferred", deferral.count);
        event.text("deferredfor", &deferral.cause);
        event.text("deferredsince", &deferral.since);
    }
    event.some("lasterror", history.last_error.as_deref());
    match &history.checkpoint {
        None => {}
        Some(Checkpoint::Inline(json)) => event.text("checkpoint", json),
        Some(Checkpoint::Stored(reference)) => {
            event.reference("checkpointref", "checkpointsize", "checkpointsha256", reference);
        }
    }
    event.some("deadletterpast", history.past.as_deref());
}

/// A JSON object that is being written. It is written by hand, since every message passes here, and a payload that is
/// JSON already is copied instead of parsed.
struct Event(Vec<u8>);

impl Event {
    fn begin(&mut self) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
    }

    /// Writes the name of a framework attribute, in which nothing needs escaping.
    fn name(&mut self, name: &'static str) {
        self.begin();
        self.0.push(b'"');
        self.0.extend_from_slice(name.as_bytes());
        self.0.extend_from_slice(b"\":");
    }

    /// Writes an attribute with the sender's name.
    fn extension(&mut self, name: &str, json: &[u8]) {
        self.begin();
        self.string(name);
        self.0.push(b':');
        self.0.extend_from_slice(json);
    }

    fn text(&mut self, name: &'static str, text: &str) {
        self.name(name);
        self.string(text);
    }

    fn some(&mut self, name: &'static str, text: Option<&str>) {
        if let Some(text) = text {
            self.text(name, text);
        }
    }

    fn number(&mut self, name: &'static str, number: u64) {
        self.json(name, number.to_string().as_bytes());
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

    fn json(&mut self, name: &'static str, json: &[u8]) {
        self.name(name);
        self.0.extend_from_slice(json);
    }

    fn string(&mut self, text: &str) {
        // The loop has no break, so that the compiler can vectorise it.
        let needs_escapes = |suspect, byte| suspect | (byte < b' ') | (byte == b'"') | (byte == b'\\');
        if !text.bytes().fold(false, needs_escapes) {
            self.0.push(b'"');
            self.0.extend_from_slice(text.as_bytes());
            self.0.push(b'"');
        } else {
            // The escapes are those of serde_json; writing to memory cannot fail.
            self.0.extend_from_slice(serde_json::Value::from(text).to_string().as_bytes());
        }
    }

    fn end(mut self) -> Result<String, EnvelopeError> {
        self.0.push(b'}');
        String::from_utf8(self.0).map(xml_safe).map_err(|_| TextError::NotUtf8.into())
    }
}
