//! The form of a message on the wire: a CloudEvents 1.0 event in JSON, with extension attributes for what the
//! framework keeps with a message.
//!
//! Knows text and attributes; knows nothing of storages, blobs or message types. The payload is carried, not
//! understood: it is parsed once, by the codec.

mod identity;
mod json_text;
mod members;
mod read;
mod reference;
mod repeated;
mod text;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::value::RawValue;

pub use identity::{EventDigest, Identity, IdentityDigest};
pub use json_text::JsonText;
pub use read::{EnvelopeError, Parsed, parse};
pub use reference::{Sha256Digest, StoredReference};
pub use repeated::repeated;
pub use text::{encoding_of, fits, fits_with_room, may_fit, to_wire};

/// The most characters of an error that are kept with a message.
pub const MAX_ERROR_CHARS: usize = 2_000;

/// An event: attributes, payload, and what the framework remembers about the job.
#[derive(Debug, Clone)]
pub struct Envelope {
    /// The job's id.
    pub id: Arc<str>,
    /// Who sent it: a URI reference.
    pub source: Arc<str>,
    /// The kind: `type` on the wire.
    pub kind: Arc<str>,
    /// When it was sent (RFC 3339), kept as it was written.
    pub time: Option<Arc<str>>,
    /// What it is about: the key.
    pub subject: Option<String>,
    /// The payload's media type.
    pub content_type: Option<Cow<'static, str>>,
    /// The version of the payload's form: `schemaversion`. `None` if the producer has not told it.
    pub version: Option<u32>,
    /// The payload.
    pub payload: Payload,
    /// The trace it was sent in.
    pub traceparent: Option<String>,
    /// What it is not to be run before (RFC 3339): delays of more than 7 days.
    pub not_before: Option<String>,
    /// The number that the fences of this message's deliveries begin above: not below any of a delivery before it was redriven.
    pub fence_base: u64,
    /// What handlers left for later attempts.
    pub history: History,
    /// What only dead letters have.
    pub dead_letter: Option<DeadLetterNote>,
    /// All other attributes, as they stood; names are those of the wire.
    pub extensions: BTreeMap<String, Box<RawValue>>,
}

/// The payload, or where it is.
#[derive(Debug, Clone)]
pub enum Payload {
    /// There is none.
    None,
    /// JSON: `data`.
    Json(JsonText),
    /// Bytes of another media type: `data_base64`.
    Binary(Bytes),
    /// In a blob: `dataref`, `datasize`, `datasha256`.
    Stored(StoredReference),
}

/// What former deliveries left in the message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Failed attempts so far.
    pub attempts: u32,
    /// Deliveries that cost no attempt so far: snoozes, shutdowns.
    pub uncounted: u32,
    /// The dequeue count of the delivery that wrote this history; 0 if none has.
    pub delivery: u32,
    /// Why the message waits although nothing is wrong with it, if it does.
    pub deferral: Option<Deferral>,
    /// The last failure, one line.
    pub last_error: Option<String>,
    /// The newest checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Earlier dead letters of the job, newest last: a JSON list.
    pub past: Option<String>,
}

/// A wait for something outside the message: for a worker that knows its kind, for a payload that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferral {
    /// The code of what is waited for.
    pub cause: String,
    /// When the wait began (RFC 3339).
    pub since: String,
    /// How often the message was put back since then.
    pub count: u32,
}

/// Progress that a handler saved: JSON text, or where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Checkpoint {
    /// In the message: `checkpoint`, a string with JSON in it.
    Inline(String),
    /// In a blob: `checkpointref`, `checkpointsize`, `checkpointsha256`.
    Stored(StoredReference),
}

/// Why and when a message was dead-lettered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterNote {
    /// The reason's code.
    pub reason: String,
    /// The queue it came from.
    pub queue: String,
    /// The storage's id of the message that was dead-lettered: two dead letters that have it in common are copies of one, and a job
    /// that is redriven and dead-lettered again has another.
    pub message: Option<String>,
    /// When (RFC 3339).
    pub time: String,
    /// How often it had been dequeued.
    pub deliveries: u32,
    /// Which worker did it.
    pub worker: Option<String>,
}

impl Envelope {
    /// An event with the required attributes and nothing else.
    pub fn new(
        id: impl Into<Arc<str>>,
        source: impl Into<Arc<str>>,
        kind: impl Into<Arc<str>>,
        payload: Payload,
    ) -> Self {
        Self {
            id: id.into(),
            source: source.into(),
            kind: kind.into(),
            time: None,
            subject: None,
            content_type: None,
            version: Some(1),
            payload,
            traceparent: None,
            not_before: None,
            fence_base: 0,
            history: History::default(),
            dead_letter: None,
            extensions: BTreeMap::new(),
        }
    }

    /// The extension attributes with text values: what senders add by name, and foreign attributes.
    pub fn headers(&self) -> BTreeMap<String, String> {
        let text = |raw: &RawValue| serde_json::from_str::<String>(raw.get()).ok();
        self.extensions.iter().filter_map(|(name, raw)| Some((name.clone(), text(raw)?))).collect()
    }

    /// Adds an extension attribute.
    ///
    /// # Errors
    /// [`EnvelopeError::HeaderName`] when the name is not 1–20 lower-case letters and digits, or is one of the
    /// framework's own.
    pub fn insert_header(&mut self, name: &str, value: &str) -> Result<(), EnvelopeError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        if name.is_empty() || name.len() > 20 || !name.bytes().all(plain) || write::is_known(name) {
            return Err(EnvelopeError::HeaderName(name.chars().take(40).collect()));
        }
        let raw = serde_json::value::to_raw_value(value).map_err(EnvelopeError::json)?;
        self.extensions.insert(name.to_owned(), raw);
        Ok(())
    }

    /// The event as JSON text of characters that XML 1.0 can carry.
    ///
    /// # Errors
    /// Practically none: a payload that is said to be JSON and is not even UTF-8.
    pub fn to_json(&self) -> Result<String, EnvelopeError> {
        write::to_json(self)
    }
}

#[cfg(test)]
mod tests;
