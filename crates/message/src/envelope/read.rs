//! Reads events in one pass over the text. The payload is not parsed.

use std::borrow::Cow;
use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::value::RawValue;

use super::members::{Members, RawMembers, declared_version, members};
use super::reference::{ReferenceError, StoredReference};
use super::{Checkpoint, DeadLetterNote, Deferral, Envelope, History, JSON, JsonText, Payload, own, text};

/// The maximum length in bytes of an event's `id`, and of its `source`.
pub const MAX_ID_BYTES: usize = 1_024;

/// The maximum number of attributes besides the framework's.
pub(super) const MAX_ATTRIBUTES: usize = 256;

/// The reason why this program cannot read a text as an event, or write an event. It does not quote the text.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnvelopeError {
    /// The text is neither JSON nor base64 of UTF-8.
    #[error(transparent)]
    Text(#[from] text::TextError),
    /// The text is not well-formed JSON, or an attribute has the wrong type.
    #[error("the event is not well-formed (line {line}, column {column}): {problem}")]
    #[non_exhaustive]
    Json {
        /// The line of the problem, from 1.
        line: usize,
        /// The column of the problem, from 1.
        column: usize,
        /// The kind of the problem.
        problem: &'static str,
    },
    /// The text is an array of several events.
    #[error("the text holds {0} events; send each as a message of its own")]
    Several(usize),
    /// An attribute has more bytes than are allowed.
    #[error("the attribute `{name}` has {bytes} bytes; {MAX_ID_BYTES} are allowed")]
    #[non_exhaustive]
    TooLong {
        /// The attribute.
        name: &'static str,
        /// The number of its bytes.
        bytes: usize,
    },
    /// The event has more attributes of its sender than are allowed.
    #[error("the event has {0} attributes of its sender; {MAX_ATTRIBUTES} are allowed")]
    TooMany(usize),
    /// A required attribute is missing or empty.
    #[error("the event lacks the attribute `{0}`")]
    Missing(&'static str),
    /// The event has another version of CloudEvents.
    #[error("the event is not of CloudEvents version 1.0")]
    SpecVersion,
    /// A numeric attribute is not a whole number in its range.
    #[error("the attribute `{0}` is not a whole number in its range")]
    Number(&'static str),
    /// `data_base64` is not base64.
    #[error("the attribute `data_base64` is not base64")]
    Base64,
    /// A reference does not match the grammar.
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    /// An attribute cannot have this name.
    #[error(
        "the header name {0:?} is not 1 to 20 lower-case letters and digits, or is taken by the framework"
    )]
    HeaderName(String),
}

impl EnvelopeError {
    pub(super) fn json(error: serde_json::Error) -> Self {
        let problem = match error.classify() {
            serde_json::error::Category::Eof => "the text ends too early",
            serde_json::error::Category::Syntax => "the text is not JSON",
            _ => "an attribute has the wrong type or occurs twice",
        };
        Self::Json { line: error.line(), column: error.column(), problem }
    }
}

/// A message's text, parsed.
#[derive(Debug)]
pub enum Parsed {
    /// The text is an event.
    Event(Box<Envelope>),
    /// The text is JSON but not an event: the raw payload of an external producer.
    Bare(JsonText),
}

/// Reads the text of a message.
///
/// # Errors
/// [`EnvelopeError`] if this version of the program can never read the message.
pub fn parse(wire: &str) -> Result<Parsed, EnvelopeError> {
    let json = text::from_wire(wire)?;
    // The decoded text, too, may begin with a line break or a byte order mark.
    let json = text::trimmed(&json);
    let json = only_event(json)?.unwrap_or(json);
    if !json.starts_with('{') {
        return bare(json);
    }
    match own::members(json).map_or_else(|| members(json), Ok) {
        Ok(members) if members.spec_version.is_some() => Ok(Parsed::Event(event(members)?)),
        Ok(_) => bare(&without_functions_parent(json)),
        // Only the attributes of an event have fixed types. A raw payload may have members of other types.
        Err(error) => match declared_version(json).map_err(EnvelopeError::json)? {
            None => bare(&without_functions_parent(json)),
            Some(version) if version.get() != "\"1.0\"" => Err(EnvelopeError::SpecVersion),
            Some(_) => Err(EnvelopeError::json(error)),
        },
    }
}

/// Returns the event in an array of one event, which Event Grid and other brokers deliver. Returns `None` if
/// the text is anything else.
///
/// # Errors
/// [`EnvelopeError::Several`] for an array of several events: a message is one job, with one lease and one
/// outcome.
fn only_event(json: &str) -> Result<Option<&str>, EnvelopeError> {
    if !json.starts_with('[') {
        return Ok(None);
    }
    let Ok(elements) = serde_json::from_str::<Vec<&RawValue>>(json) else { return Ok(None) };
    let is_event = |element: &RawValue| matches!(declared_version(element.get()), Ok(Some(_)));
    match elements[..] {
        [one] if is_event(one) => Ok(Some(one.get())),
        [_, _, ..] if elements.iter().all(|element| is_event(element)) => {
            Err(EnvelopeError::Several(elements.len()))
        }
        _ => Ok(None),
    }
}

fn bare(json: &str) -> Result<Parsed, EnvelopeError> {
    Ok(Parsed::Bare(JsonText::check(Bytes::copy_from_slice(json.as_bytes()))?))
}

/// The member that Azure Functions adds to the objects it sends. CloudEvents does not allow this name for an
/// attribute, so other SDKs refuse an event with it.
const FUNCTIONS_PARENT: &str = "$AzureWebJobsParentId";

fn without_functions_parent(json: &str) -> Cow<'_, str> {
    if !json.contains(FUNCTIONS_PARENT) {
        return Cow::Borrowed(json);
    }
    match serde_json::from_str::<BTreeMap<Cow<'_, str>, &RawValue>>(json) {
        Ok(mut members) => {
            members.remove(FUNCTIONS_PARENT);
            serde_json::to_string(&members).map_or(Cow::Borrowed(json), Cow::Owned)
        }
        Err(_) => Cow::Borrowed(json),
    }
}

fn event(members: Members<'_>) -> Result<Box<Envelope>, EnvelopeError> {
    if members.spec_version.as_deref() != Some("1.0") {
        return Err(EnvelopeError::SpecVersion);
    }
    let version = number("schemaversion", members.version)?;
    if version == Some(0) {
        return Err(EnvelopeError::Number("schemaversion"));
    }
    let mut envelope = Box::new(Envelope {
        id: identifying("id", members.id)?.into(),
        source: identifying("source", members.source)?.into(),
        kind: required("type", members.kind)?.into(),
        time: members.time.map(Into::into),
        key: members.key.filter(|key| !key.is_empty()).map(Cow::into_owned),
        content_type: members.content_type.map(content_type),
        version,
        payload: members.data.map_or(Payload::None, |data| Payload::Json(data.into())),
        traceparent: members.traceparent.map(Cow::into_owned),
        not_before: None,
        fence_base: 0,
        history: History::default(),
        dead_letter: None,
        extensions: BTreeMap::new(),
    });
    if !members.others.is_empty() {
        read_rare_attributes(&mut envelope, Taker(members.others), members.data)?;
    }
    Ok(envelope)
}

/// Reads the attributes that few events have.
fn read_rare_attributes(
    envelope: &mut Envelope,
    mut take: Taker<'_>,
    data: Option<&RawValue>,
) -> Result<(), EnvelopeError> {
    let elsewhere = payload(&mut take)?;
    envelope.not_before = take.text("notbefore")?;
    envelope.fence_base = take.long("fencebase")?.unwrap_or(0);
    envelope.history = history(&mut take)?;
    envelope.dead_letter = dead_letter(&mut take)?;
    envelope.extensions = take.rest();
    envelope.extensions.remove(FUNCTIONS_PARENT);
    envelope.check_attributes()?;
    if let Some(payload) = elsewhere {
        envelope.payload = payload;
        // `data` is not the payload that this program reads. It is kept for the event's producer.
        envelope.extensions.extend(data.map(|data| ("data".to_owned(), data.to_owned())));
    }
    Ok(())
}

fn history(take: &mut Taker<'_>) -> Result<History, EnvelopeError> {
    Ok(History {
        attempts: take.number("attempts")?.unwrap_or(0),
        uncounted: take.number("excused")?.unwrap_or(0),
        delivery: take.number("deliverycount")?.unwrap_or(0),
        finished: take.text("handlerfinished")?,
        deferral: deferral(take)?,
        last_error: take.text("lasterror")?,
        checkpoint: checkpoint(take)?,
        past: take.text("deadletterpast")?,
    })
}

fn deferral(take: &mut Taker<'_>) -> Result<Option<Deferral>, EnvelopeError> {
    let (count, cause) = (take.number("deferred")?.unwrap_or(0), take.text("deferredfor")?);
    let since = take.text("deferredsince")?;
    Ok(cause.zip(since).map(|(cause, since)| Deferral { cause, since, count }))
}

fn required<'de>(name: &'static str, text: Option<Cow<'de, str>>) -> Result<Cow<'de, str>, EnvelopeError> {
    text.filter(|text| !text.is_empty()).ok_or(EnvelopeError::Missing(name))
}

/// Returns a part of the identity. Its length is bounded because records of the job contain it and people see
/// it.
fn identifying<'de>(name: &'static str, text: Option<Cow<'de, str>>) -> Result<Cow<'de, str>, EnvelopeError> {
    let text = required(name, text)?;
    if text.len() > MAX_ID_BYTES {
        return Err(EnvelopeError::TooLong { name, bytes: text.len() });
    }
    Ok(text)
}

/// Returns the content type. JSON, which nearly all events have, needs no allocation.
fn content_type(text: Cow<'_, str>) -> Cow<'static, str> {
    if text == JSON { Cow::Borrowed(JSON) } else { Cow::Owned(text.into_owned()) }
}

/// Reads a whole number, or a text of its digits, which some producers write.
fn long(name: &'static str, json: Option<&str>) -> Result<Option<u64>, EnvelopeError> {
    let Some(json) = json else { return Ok(None) };
    let digits = json.trim_matches('"');
    if digits == "null" {
        return Ok(None);
    }
    digits.parse().map(Some).map_err(|_| EnvelopeError::Number(name))
}

fn number(name: &'static str, json: Option<&str>) -> Result<Option<u32>, EnvelopeError> {
    let number = long(name, json)?;
    number.map(|n| u32::try_from(n).map_err(|_| EnvelopeError::Number(name))).transpose()
}

/// Reads a payload that is not in `data`: a reference or bytes.
fn payload(take: &mut Taker<'_>) -> Result<Option<Payload>, EnvelopeError> {
    let size = take.long("datasize")?;
    let sha256 = take.text("datasha256")?;
    if let Some(reference) = take.text("dataref")? {
        return Ok(Some(Payload::Stored(StoredReference::parse(&reference, size, sha256.as_deref())?)));
    }
    if let Some(encoded) = take.text("data_base64")? {
        let bytes = STANDARD.decode(encoded).map_err(|_| EnvelopeError::Base64)?;
        return Ok(Some(Payload::Binary(Bytes::from(bytes))));
    }
    Ok(None)
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
    let deliveries = take.number("deadletterdeliveries")?.unwrap_or(0);
    let message = take.text("deadlettermessage")?;
    let worker = take.text("deadletterworker")?;
    let reason = take.text("deadletterreason")?;
    Ok(reason.map(|reason| DeadLetterNote { reason, queue, message, time, deliveries, worker }))
}

/// The attributes that few events have. Each read removes its attribute, so that the extensions remain.
struct Taker<'de>(RawMembers<'de>);

impl<'de> Taker<'de> {
    fn raw(&mut self, name: &'static str) -> Option<&'de RawValue> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1)
    }

    /// Returns the remaining attributes, except those that are `null`.
    fn rest(self) -> BTreeMap<String, Box<RawValue>> {
        let set = self.0.into_iter().filter(|(_, raw)| raw.get() != "null");
        set.map(|(name, raw)| (name.into_owned(), raw.to_owned())).collect()
    }

    fn text(&mut self, name: &'static str) -> Result<Option<String>, EnvelopeError> {
        let text = |raw: &RawValue| serde_json::from_str(raw.get()).map_err(EnvelopeError::json);
        self.raw(name).map_or(Ok(None), text)
    }

    fn number(&mut self, name: &'static str) -> Result<Option<u32>, EnvelopeError> {
        number(name, self.raw(name).map(RawValue::get))
    }

    fn long(&mut self, name: &'static str) -> Result<Option<u64>, EnvelopeError> {
        long(name, self.raw(name).map(RawValue::get))
    }
}
