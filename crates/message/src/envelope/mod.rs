//! The wire form of a message: a CloudEvents 1.0 event in JSON, with extension attributes for the framework's
//! own data.
//!
//! The module knows text and attributes; it knows nothing of storages, blobs or message types. It never
//! parses the payload: the codec parses it once.

pub mod headers;
mod identity;
mod json_text;
mod members;
mod own;
mod read;
mod reference;
mod text;
mod tracestate;
mod write;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use jobqueue_storage::QueueName;
use serde_json::value::RawValue;

use crate::job::{JobInfo, TraceContext};
use crate::times::parse_rfc3339;
pub use headers::is_own_header;
#[doc(hidden)]
pub use identity::hash_part;
pub use identity::{EventDigest, Identity, IdentityDigest};
pub use json_text::JsonText;
use read::MAX_ATTRIBUTES;
pub use read::{EnvelopeError, MAX_ID_BYTES, Parsed, parse};
pub use reference::{ReferenceError, Sha256Digest, StoredReference};
pub use text::{TextError, encoding_of, fits, fits_with_room, may_fit, to_wire};
use tracestate::TRACESTATE;
pub use tracestate::{keep_state, state_of};

/// The kind of a dead letter that holds the text of a message that could not be read as a job.
pub const UNREADABLE_KIND: &str = "jobqueue.unreadable";

/// The kind of a raw payload that a redrive put back under its former id. A worker reads such a message as
/// the queue's only kind.
pub const RAW_KIND: &str = "jobqueue.raw";

/// The media type of JSON.
const JSON: &str = "application/json";
/// The maximum length of an error text that is kept with a message, in characters.
pub const MAX_ERROR_CHARS: usize = 2_000;

/// An event: its attributes, its payload, and the framework's data about the job.
#[derive(Clone)]
pub struct Envelope {
    /// The job's id.
    pub id: Arc<str>,
    /// The sender: a URI reference.
    pub source: Arc<str>,
    /// The kind: `type` on the wire.
    pub kind: Arc<str>,
    /// The time of sending (RFC 3339), as the producer wrote it.
    pub time: Option<Arc<str>>,
    /// The key: the thing that the job is about.
    pub key: Option<String>,
    /// The payload's media type.
    pub content_type: Option<Cow<'static, str>>,
    /// The version of the payload's form: `schemaversion`. `None` if the producer set none.
    pub version: Option<u32>,
    /// The payload.
    pub payload: Payload,
    /// The trace context of the send.
    pub traceparent: Option<String>,
    /// The time before which the job must not run (RFC 3339), for delays of more than 7 days.
    pub not_before: Option<String>,
    /// The exclusive lower bound of the fencing tokens of this message's deliveries: no smaller than any
    /// token of a delivery before a redrive.
    pub fence_base: u64,
    /// The state that earlier deliveries left for later attempts.
    pub history: History,
    /// The attributes that only dead letters have.
    pub dead_letter: Option<DeadLetterNote>,
    /// All other attributes with their raw values, by their names on the wire.
    pub extensions: BTreeMap<String, Box<RawValue>>,
}

/// The payload, or a reference to a blob with it.
#[derive(Clone)]
pub enum Payload {
    /// The event has no payload, or its payload is `null`.
    None,
    /// JSON: `data`.
    Json(JsonText),
    /// Bytes of another media type: `data_base64`.
    Binary(Bytes),
    /// In a blob: `dataref`, `datasize`, `datasha256`.
    Stored(StoredReference),
}

impl Payload {
    /// Returns the payload if the event itself contains it.
    pub fn inline(&self) -> Option<&Bytes> {
        match self {
            Self::Json(json) => Some(json.as_bytes()),
            Self::Binary(bytes) => Some(bytes),
            Self::None | Self::Stored(_) => None,
        }
    }
}

/// The state that earlier deliveries left in the message.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct History {
    /// The number of failed attempts so far.
    pub attempts: u32,
    /// The number of deliveries so far that did not count: snoozes and shutdowns.
    pub uncounted: u32,
    /// The dequeue count of the delivery that wrote this history; 0 if none has.
    pub delivery: u32,
    /// The handler's output, as JSON. `Some` once the handler has finished; then only the job's hooks must
    /// still succeed.
    pub finished: Option<String>,
    /// The reason why the message, although it is sound, has to wait.
    pub deferral: Option<Deferral>,
    /// The last failure, as one line.
    pub last_error: Option<String>,
    /// The newest checkpoint.
    pub checkpoint: Option<Checkpoint>,
    /// Earlier dead letters of the job, newest last: a JSON list.
    pub past: Option<String>,
}

/// A wait for a condition outside the message: a worker that knows its kind, or a payload that can be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferral {
    /// The code of the condition.
    pub cause: String,
    /// The time at which the wait began (RFC 3339).
    pub since: String,
    /// The number of times the message was put back since then.
    pub count: u32,
}

/// A handler's saved progress: JSON text, or a reference to a blob with it.
#[derive(Clone, PartialEq, Eq)]
pub enum Checkpoint {
    /// In the message: `checkpoint`, a string that contains JSON.
    Inline(String),
    /// In a blob: `checkpointref`, `checkpointsize`, `checkpointsha256`.
    Stored(StoredReference),
}

/// The reason and the time of a dead-lettering.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetterNote {
    /// The reason's code.
    pub reason: String,
    /// The queue from which the message came.
    pub queue: String,
    /// The storage's id of the message that was dead-lettered. Two dead letters with the same id are copies
    /// of each other. A job that is redriven and dead-lettered again has a new id here.
    pub message: Option<String>,
    /// The time of the dead-lettering (RFC 3339).
    pub time: String,
    /// The number of times the message had been dequeued.
    pub deliveries: u32,
    /// The worker that dead-lettered the message.
    pub worker: Option<String>,
}

jobqueue_storage::debug_fields! {
    /// Shows no payload, and of the other attributes only the names: one of them may be a second payload.
    Envelope {
        id,
        source,
        kind,
        time,
        content_type,
        version,
        payload,
        history,
        dead_letter,
        extensions = extensions.keys()
    }
    /// Shows the number of bytes that the event itself contains.
    Payload { inline_bytes = inline().map(Bytes::len) }
    /// Shows neither the output nor the checkpoint of the handler.
    History {
        attempts,
        uncounted,
        delivery,
        finished = finished.is_some(),
        deferral,
        last_error,
        checkpoint = checkpoint.is_some()
    }
    /// Shows no progress.
    Checkpoint {}
}

impl Envelope {
    /// Returns an event with only the required attributes, and version 1.
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
            key: None,
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

    /// Returns the event as its sender wrote it, without the state that deliveries left in it. It can then be
    /// sent as a new message.
    #[must_use]
    pub fn into_sent(self) -> Self {
        Self { fence_base: 0, history: History::default(), dead_letter: None, ..self }
    }

    /// Replaces the payload. An event of another producer may have a second payload in an attribute, which is
    /// removed.
    pub fn set_payload(&mut self, payload: Payload) {
        self.extensions.retain(|name, _| !matches!(name.as_str(), "data" | "data_base64"));
        self.payload = payload;
    }

    /// Returns the media type of the payload. Without a declared type: JSON for a payload in `data` and for
    /// no payload, otherwise `None`.
    pub fn media_type(&self) -> Option<Cow<'static, str>> {
        let json = matches!(self.payload, Payload::Json(_) | Payload::None).then_some(Cow::Borrowed(JSON));
        self.content_type.clone().or(json)
    }

    /// Returns the extension attributes whose values are texts, numbers or booleans: the headers that senders
    /// set, and the extensions of external producers.
    pub fn headers(&self) -> BTreeMap<String, String> {
        let text = |raw: &RawValue| match serde_json::from_str(raw.get()).ok()? {
            serde_json::Value::String(text) => Some(text),
            serde_json::Value::Number(_) | serde_json::Value::Bool(_) => Some(raw.get().to_owned()),
            _ => None,
        };
        self.extensions.iter().filter_map(|(name, raw)| Some((name.clone(), text(raw)?))).collect()
    }

    /// Returns the job, filled in as far as the event describes it. The facts that only the storage and the
    /// settings know are placeholders, which the caller sets: at most 1 attempt, dequeued once, inserted in
    /// 1970, no expiry.
    pub fn job(&self, queue: QueueName, trace: TraceContext) -> JobInfo {
        JobInfo {
            id: Arc::clone(&self.id),
            kind: Arc::clone(&self.kind),
            version: self.version.unwrap_or(1),
            queue,
            source: Arc::clone(&self.source),
            key: self.key.as_deref().map(Into::into),
            attempt: self.history.attempts.saturating_add(1),
            max_attempts: 1,
            dequeue_count: 1,
            sent: self.time.as_deref().and_then(parse_rfc3339),
            inserted: SystemTime::UNIX_EPOCH,
            expires: None,
            headers: if self.extensions.is_empty() { BTreeMap::new() } else { self.headers() },
            trace,
        }
    }

    /// Returns the references to the blobs of the payload and of the checkpoint.
    pub fn references(&self) -> Vec<StoredReference> {
        let payload = match &self.payload {
            Payload::Stored(reference) => Some(reference.clone()),
            _ => None,
        };
        let checkpoint = match &self.history.checkpoint {
            Some(Checkpoint::Stored(reference)) => Some(reference.clone()),
            _ => None,
        };
        payload.into_iter().chain(checkpoint).collect()
    }

    /// Adds an extension attribute.
    ///
    /// # Errors
    /// [`EnvelopeError::HeaderName`] if the name is not 1–20 lower-case letters and digits, or belongs to the
    /// framework.
    pub fn insert_header(&mut self, name: &str, value: &str) -> Result<(), EnvelopeError> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        if name.is_empty() || name.len() > 20 || !name.bytes().all(plain) || write::is_known(name) {
            return Err(EnvelopeError::HeaderName(name.chars().take(40).collect()));
        }
        let raw = serde_json::value::to_raw_value(value).map_err(EnvelopeError::json)?;
        self.extensions.insert(name.to_owned(), raw);
        Ok(())
    }

    /// Checks that every reader accepts the number of attributes. The framework's attributes do not count, so
    /// that no delivery or send can make an event unreadable.
    ///
    /// # Errors
    /// [`EnvelopeError::TooMany`] for more than 256 attributes of the sender.
    pub fn check_attributes(&self) -> Result<(), EnvelopeError> {
        let of_sender = |name: &&String| !is_own_header(name) && *name != TRACESTATE;
        if self.extensions.len() <= MAX_ATTRIBUTES {
            return Ok(());
        }
        match self.extensions.keys().filter(of_sender).count() {
            0..=MAX_ATTRIBUTES => Ok(()),
            count => Err(EnvelopeError::TooMany(count)),
        }
    }

    /// Returns the event as JSON text of characters that XML 1.0 can carry.
    ///
    /// # Errors
    /// An error only if a payload is declared as JSON and is not UTF-8.
    pub fn to_json(&self) -> Result<String, EnvelopeError> {
        write::to_json(self)
    }
}

#[cfg(test)]
mod tests;
