//! Writing events.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::ser::{Serialize, SerializeMap, Serializer};

use super::{Checkpoint, Envelope, Payload};

/// The attributes that have a meaning here; anything else is an extension that is kept as it is.
const KNOWN: &[&str] = &[
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "subject",
    "datacontenttype",
    "schemaversion",
    "data",
    "data_base64",
    "dataref",
    "datasize",
    "datasha256",
    "traceparent",
    "notbefore",
    "checkpoint",
    "checkpointref",
    "checkpointsize",
    "checkpointsha256",
    "attempts",
    "excused",
    "deferred",
    "lasterror",
    "deadletterreason",
    "deadletterqueue",
    "deadlettertime",
    "deadlettercount",
    "deadletterworker",
    "deadletterpast",
];

pub(super) fn is_known(name: &str) -> bool {
    KNOWN.contains(&name)
}

pub(super) fn to_json(envelope: &Envelope) -> serde_json::Result<String> {
    serde_json::to_string(envelope).map(super::text::xml_safe)
}

impl Serialize for Envelope {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = Attributes(serializer.serialize_map(None)?);
        map.put("specversion", "1.0")?;
        map.put("id", &self.id)?;
        map.put("source", &self.source)?;
        map.put("type", &self.kind)?;
        map.some("time", self.time.as_ref())?;
        map.some("subject", self.subject.as_ref())?;
        map.some("datacontenttype", self.content_type.as_ref())?;
        map.put("schemaversion", &self.version)?;
        map.some("traceparent", self.traceparent.as_ref())?;
        map.some("notbefore", self.not_before.as_ref())?;
        let history = &self.history;
        map.count("attempts", history.attempts)?;
        map.count("excused", history.excused)?;
        map.count("deferred", history.deferred)?;
        map.some("lasterror", history.last_error.as_ref())?;
        match &history.checkpoint {
            None => {}
            Some(Checkpoint::Inline(json)) => map.put("checkpoint", json)?,
            Some(Checkpoint::Stored(reference)) => {
                map.put("checkpointref", &reference.to_string())?;
                map.put("checkpointsize", &reference.size)?;
                map.put("checkpointsha256", &reference.sha256.to_string())?;
            }
        }
        map.some("deadletterpast", history.past.as_ref())?;
        if let Some(note) = &self.dead_letter {
            map.put("deadletterreason", &note.reason)?;
            map.put("deadletterqueue", &note.queue)?;
            map.put("deadlettertime", &note.time)?;
            map.put("deadlettercount", &note.deliveries)?;
            map.some("deadletterworker", note.worker.as_ref())?;
        }
        for (name, value) in &self.extensions {
            map.put(name, value)?;
        }
        match &self.payload {
            Payload::None => {}
            Payload::Json(data) => map.put("data", data)?,
            Payload::Binary(bytes) => map.put("data_base64", &STANDARD.encode(bytes))?,
            Payload::Stored(reference) => {
                map.put("dataref", &reference.to_string())?;
                map.put("datasize", &reference.size)?;
                map.put("datasha256", &reference.sha256.to_string())?;
            }
        }
        map.0.end()
    }
}

struct Attributes<M>(M);

impl<M: SerializeMap> Attributes<M> {
    fn put<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<(), M::Error> {
        self.0.serialize_entry(name, value)
    }

    fn some<T: Serialize>(&mut self, name: &str, value: Option<&T>) -> Result<(), M::Error> {
        value.map_or(Ok(()), |value| self.put(name, value))
    }

    fn count(&mut self, name: &str, value: u32) -> Result<(), M::Error> {
        if value == 0 { Ok(()) } else { self.put(name, &value) }
    }
}
