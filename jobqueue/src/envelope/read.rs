//! Reading events. One pass over the text; the payload is not looked into.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;

use super::members::{List, Value, members};
use super::reference::{ReferenceError, StoredReference};
use super::{Checkpoint, DeadLetterNote, Envelope, History, JsonText, Payload, text};

/// Why a text is not an event this program understands. The text is not quoted.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// It is not JSON at all.
    #[error(transparent)]
    Text(#[from] text::TextError),
    /// It is not well-formed JSON, or an attribute has the wrong type.
    #[error("the event is not well-formed (line {line}, column {column}): {problem}")]
    Json {
        /// Where, from 1.
        line: usize,
        /// Where, from 1.
        column: usize,
        /// In what way.
        problem: &'static str,
    },
    /// A required attribute is missing or empty.
    #[error("the event lacks the attribute `{0}`")]
    Missing(&'static str),
    /// It is of another version of CloudEvents.
    #[error("the event is not of CloudEvents version 1.0")]
    SpecVersion,
    /// A version below 1 or above 2³²−1.
    #[error("the attribute `{0}` is not a whole number in its range")]
    Number(&'static str),
    /// `data_base64` is not base64.
    #[error("the attribute `data_base64` is not base64")]
    Base64,
    /// A reference outside the grammar.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// A name that an attribute cannot have.
    #[error(
        "the header name {0:?} is not 1 to 20 lower-case letters and digits, or is taken by the framework"
    )]
    HeaderName(String),
}

impl EnvelopeError {
    pub(super) fn json(error: serde_json::Error) -> Self {
        let problem = match error.classify() {
            serde_json::error::Category::Eof => "it ends too early",
            serde_json::error::Category::Syntax => "it is not JSON",
            _ => "an attribute has the wrong type or stands twice",
        };
        Self::Json { line: error.line(), column: error.column(), problem }
    }
}

/// What a text turned out to be.
#[derive(Debug)]
pub enum Parsed {
    /// An event.
    Event(Box<Envelope>),
    /// JSON that is no event: the bare payload of a foreign producer.
    Bare(JsonText),
}

/// Reads the text of a message.
///
/// # Errors
/// [`EnvelopeError`]; the message can never be read.
pub fn parse(wire: &str) -> Result<Parsed, EnvelopeError> {
    let json = text::from_wire(wire)?;
    let json = json.trim_end();
    if !json.starts_with('{') {
        return bare(json);
    }
    let attributes = members(json).map_err(EnvelopeError::json)?;
    match attributes.iter().any(|(name, _)| name == "specversion") {
        false => bare(&without_functions_parent(json)),
        true => Ok(Parsed::Event(Box::new(event(attributes)?))),
    }
}

fn bare(json: &str) -> Result<Parsed, EnvelopeError> {
    Ok(Parsed::Bare(JsonText::check(Bytes::copy_from_slice(json.as_bytes()))?))
}

/// Azure Functions adds a member of its own to the objects it sends.
fn without_functions_parent(json: &str) -> Cow<'_, str> {
    const PARENT: &str = "$AzureWebJobsParentId";
    if !json.contains(PARENT) {
        return Cow::Borrowed(json);
    }
    match serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(json) {
        Ok(mut members) => {
            members.remove(PARENT);
            serde_json::to_string(&members).map_or(Cow::Borrowed(json), Cow::Owned)
        }
        Err(_) => Cow::Borrowed(json),
    }
}

fn event(members: List<'_>) -> Result<Envelope, EnvelopeError> {
    let mut take = Taker(members);
    if take.text("specversion")?.as_deref() != Some("1.0") {
        return Err(EnvelopeError::SpecVersion);
    }
    let id = take.required("id")?;
    let source = take.required("source")?;
    let kind = take.required("type")?.into_owned();
    let mut envelope = Envelope::new(id, source, kind, Payload::None);
    // First what every event has, so that there is little left to look through for what few have.
    envelope.time = take.borrowed("time")?.map(Into::into);
    envelope.content_type = take.text("datacontenttype")?.map(Into::into);
    envelope.version = take.number("schemaversion")?.unwrap_or(1);
    if envelope.version == 0 {
        return Err(EnvelopeError::Number("schemaversion"));
    }
    envelope.traceparent = take.text("traceparent")?;
    envelope.payload = payload(&mut take)?;
    envelope.subject = take.text("subject")?.filter(|subject| !subject.is_empty());
    envelope.not_before = take.text("notbefore")?;
    envelope.history = History {
        attempts: take.number("attempts")?.unwrap_or(0),
        excused: take.number("excused")?.unwrap_or(0),
        deferred: take.number("deferred")?.unwrap_or(0),
        last_error: take.text("lasterror")?,
        checkpoint: checkpoint(&mut take)?,
        past: take.text("deadletterpast")?,
    };
    envelope.dead_letter = dead_letter(&mut take)?;
    envelope.extensions = take.rest();
    Ok(envelope)
}

fn payload(take: &mut Taker<'_>) -> Result<Payload, EnvelopeError> {
    let size = take.long("datasize")?;
    let sha256 = take.text("datasha256")?;
    if let Some(reference) = take.text("dataref")? {
        return Ok(Payload::Stored(StoredReference::parse(&reference, size, sha256.as_deref())?));
    }
    if let Some(encoded) = take.text("data_base64")? {
        let bytes = STANDARD.decode(encoded).map_err(|_| EnvelopeError::Base64)?;
        return Ok(Payload::Binary(Bytes::from(bytes)));
    }
    Ok(take.raw("data").map_or(Payload::None, |data| Payload::Json(data.into())))
}

fn checkpoint(take: &mut Taker<'_>) -> Result<Option<Checkpoint>, EnvelopeError> {
    let size = take.long("checkpointsize")?;
    let sha256 = take.text("checkpointsha256")?;
    let inline = take.text("checkpoint")?;
    Ok(match take.text("checkpointref")? {
        Some(reference) => {
            Some(Checkpoint::Stored(StoredReference::parse(&reference, size, sha256.as_deref())?))
        }
        None => inline.map(Checkpoint::Inline),
    })
}

fn dead_letter(take: &mut Taker<'_>) -> Result<Option<DeadLetterNote>, EnvelopeError> {
    let queue = take.text("deadletterqueue")?.unwrap_or_default();
    let time = take.text("deadlettertime")?.unwrap_or_default();
    let deliveries = take.number("deadlettercount")?.unwrap_or(0);
    let worker = take.text("deadletterworker")?;
    let reason = take.text("deadletterreason")?;
    Ok(reason.map(|reason| DeadLetterNote { reason, queue, time, deliveries, worker }))
}

/// Takes attributes out by name, so that what is left are the extensions.
///
/// A few attributes in a list: looking through them is quicker than a map, and every message passes here.
struct Taker<'de>(List<'de>);

impl<'de> Taker<'de> {
    fn value(&mut self, name: &'static str) -> Option<Value<'de>> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// What is no text by its name.
    fn raw(&mut self, name: &'static str) -> Option<&'de RawValue> {
        match self.value(name)? {
            Value::Raw(raw) => Some(raw),
            Value::Text(_) => None,
        }
    }

    /// What nobody has asked for, and is no text by its name.
    fn rest(self) -> BTreeMap<String, Box<RawValue>> {
        let raw = |(name, value): (Cow<'_, str>, Value<'_>)| match value {
            Value::Raw(raw) => Some((name.into_owned(), raw.to_owned())),
            Value::Text(_) => None,
        };
        self.0.into_iter().filter_map(raw).collect()
    }

    fn text(&mut self, name: &'static str) -> Result<Option<String>, EnvelopeError> {
        Ok(self.borrowed(name)?.map(Cow::into_owned))
    }

    fn required(&mut self, name: &'static str) -> Result<Cow<'de, str>, EnvelopeError> {
        self.borrowed(name)?.filter(|text| !text.is_empty()).ok_or(EnvelopeError::Missing(name))
    }

    fn borrowed(&mut self, name: &'static str) -> Result<Option<Cow<'de, str>>, EnvelopeError> {
        let raw = match self.value(name) {
            None => return Ok(None),
            Some(Value::Text(text)) => return Ok(Some(text)),
            Some(Value::Raw(raw)) => raw,
        };
        // It is well-formed JSON: between quotes and without escapes, a text stands as it is.
        if let Some(text) = raw.get().strip_prefix('"').and_then(|text| text.strip_suffix('"'))
            && !text.as_bytes().contains(&b'\\')
        {
            return Ok(Some(Cow::Borrowed(text)));
        }
        serde_json::from_str(raw.get()).map_err(EnvelopeError::json)
    }

    fn number(&mut self, name: &'static str) -> Result<Option<u32>, EnvelopeError> {
        let number = self.long(name)?;
        number.map(|n| u32::try_from(n).map_err(|_| EnvelopeError::Number(name))).transpose()
    }

    /// Other producers write whole numbers as text; both are read.
    fn long(&mut self, name: &'static str) -> Result<Option<u64>, EnvelopeError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let digits = raw.get().trim_matches('"');
        if digits == "null" {
            return Ok(None);
        }
        digits.parse().map(Some).map_err(|_| EnvelopeError::Number(name))
    }
}
