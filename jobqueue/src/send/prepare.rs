//! Turns a message into the text that is stored, and a blob if the payload is large.

use std::any::TypeId;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use jiff::Timestamp;
use uuid::Uuid;

use super::history_reserve::reserve_history_space;
use super::options::SendOptions;
use super::resend::mark_copy;
use super::sent::Sent;
use crate::clock::rfc3339;
use crate::codec::{Codec, Json, encode_message, is_json};
use crate::envelope::{
    Envelope, JsonText, Parsed, Payload, StoredReference, encoding_of, is_own_header, keep_state, parse,
    to_wire,
};
use crate::error::{Error, ErrorKind};
use crate::group_log::{Announcement, is_in_order, stamp_page};
use crate::message::QueueMessage;
use crate::queue_core::{MAX_DELAY, QueueCore, check_length, fit};
use crate::runtime::Runtime;
use crate::storage::{MAX_VISIBILITY, MessageRef, PutMessage, QueueName, Queues, StoreError};
use crate::trace::{OpenSpan, Step, TraceContext};
use crate::undelivered::StoredMessage;

/// The maximum number of headers that a send sets. The framework's own headers do not count.
const MAX_HEADERS: usize = 200;

/// A valid message with its payload.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    data: Bytes,
    key: Option<String>,
    options: SendOptions,
}

impl Draft {
    pub(crate) fn new<M: QueueMessage>(message: &M, options: SendOptions) -> Result<Self, Error> {
        let data = Bytes::from(encode_message(message)?);
        options.id.as_deref().map_or(Ok(()), |id| check_length("id", id))?;
        let key = options.key.clone().or_else(|| message.key().map(|key| key.into_owned()));
        Ok(Self { data, key: key.filter(|key| !key.is_empty()), options })
    }

    /// Gives the job a new id, unless the sender has set one.
    pub(super) fn with_own_id(mut self, runtime: &Runtime) -> Self {
        self.options.id.get_or_insert_with(|| runtime.uuid_v7().to_string());
        self
    }

    pub(super) fn with_identity(mut self, id: &str, source: &Arc<str>) -> Result<Self, Error> {
        check_length("id", id)?;
        (self.options.id, self.options.source) = (Some(id.to_owned()), Some(Arc::clone(source)));
        Ok(self)
    }

    pub(crate) fn id(&self) -> Option<&str> {
        self.options.id.as_deref()
    }

    pub(super) fn source(&self, core: &QueueCore) -> Arc<str> {
        Arc::clone(self.options.source.as_ref().unwrap_or(&core.options.source))
    }

    pub(crate) fn data(&self) -> &[u8] {
        &self.data
    }

    pub(crate) fn key(&self) -> Option<&str> {
        self.key.as_deref()
    }

    pub(crate) fn is_in_order(&self) -> bool {
        self.options.in_order
    }
}

/// A message that is ready to be stored, and the blob to store before it.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) id: Arc<str>,
    pub(crate) put: PutMessage,
    pub(crate) blob: Option<Box<(StoredReference, Bytes)>>,
    pub(crate) expires: Option<SystemTime>,
    /// The position to announce, if the message belongs to a FIFO group.
    pub(crate) announcement: Option<Announcement>,
    /// The time until which the storage hides the message, by this process's clock.
    hidden_until: Option<SystemTime>,
    pub(crate) kind: Arc<str>,
    /// The span of the message's send, or of its creation if the message is part of a list.
    pub(crate) span: OpenSpan,
}

/// The purpose for which a message is encoded. It decides which span is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The message is sent alone.
    One,
    /// The message is sent with others, or later.
    OneOfMany,
    Check,
}

impl Prepared {
    pub(crate) fn sent(self, stored: Option<StoredMessage>) -> Sent {
        let position = self.announcement.map(|announcement| announcement.entry);
        Sent { id: self.id, stored, position, unique: None }
    }

    /// Records the position of the job, and writes its page into the message.
    pub(super) fn enter(&mut self, announcement: Announcement) -> Result<(), Error> {
        self.announcement = Some(announcement);
        // The log recognises a repeated send itself. A storage that detects duplicates would drop the message
        // of a job that has ended, and the new position would wait for it.
        self.put.job = None;
        if let Some(page) = announcement.entry.page
            && let Parsed::Event(mut event) = parse(&self.put.text)?
        {
            stamp_page(&mut event, page)?;
            self.put.text = to_wire(event.to_json()?, encoding_of(&self.put.text));
        }
        Ok(())
    }

    /// Marks a child of a batch as a possible copy: an earlier message of it may exist.
    pub(crate) fn mark_copy(&mut self) -> Result<(), Error> {
        if let Parsed::Event(mut event) = parse(&self.put.text)?
            && mark_copy(&mut event)?
        {
            self.put.text = to_wire(event.to_json()?, encoding_of(&self.put.text));
        }
        Ok(())
    }

    /// Takes the message out, to store it in another way.
    pub(crate) fn take_put(&mut self) -> PutMessage {
        std::mem::replace(&mut self.put, PutMessage::new(String::new()))
    }

    pub(crate) fn stored(&self, message: MessageRef, may_be_duplicated: bool) -> StoredMessage {
        // Each copy of a message has its own blob, and this blob may belong to another copy than `message`. A
        // sweep deletes the blobs of the others.
        let own = self.blob.as_deref().filter(|_| !may_be_duplicated);
        let payload = own.map(|(reference, _)| Box::new(reference.clone()));
        let hidden_until = self.hidden_until;
        StoredMessage { message, hidden_until, may_be_duplicated, may_be_deleted: false, payload }
    }
}

/// Validates and encodes a message. Stores nothing.
pub(crate) fn prepare<M: QueueMessage>(
    core: &QueueCore,
    message: &M,
    options: SendOptions,
    purpose: Purpose,
) -> Result<Prepared, Error> {
    render_draft::<M>(core, Draft::new(message, options)?, purpose)
}

/// [`render_draft`] of a message type: the only part of a send that depends on the type. Everything else is
/// compiled once, in this crate.
pub(crate) type Render = fn(&QueueCore, Draft, Purpose) -> Result<Prepared, Error>;

pub(crate) fn render_draft<M: QueueMessage>(
    core: &QueueCore,
    draft: Draft,
    purpose: Purpose,
) -> Result<Prepared, Error> {
    let Draft { data, key, mut options } = draft;
    let id = options.id.take().map_or_else(|| new_id(core.runtime()), Into::into);
    let payload = payload::<M::Codec>(data)?;
    let source = options.source.take().unwrap_or_else(|| Arc::clone(&core.options.source));
    let mut envelope = Envelope::new(id, source, M::KIND, payload);
    envelope.version = Some(M::VERSION);
    envelope.content_type = Some(M::Codec::CONTENT_TYPE.into());
    envelope.key = key;
    prepare_envelope(core, envelope, options, purpose)
}

/// Encodes an envelope.
pub(crate) fn prepare_envelope(
    core: &QueueCore,
    mut envelope: Envelope,
    options: SendOptions,
    purpose: Purpose,
) -> Result<Prepared, Error> {
    let now = core.now();
    let delay = delay(&options, now)?;
    if delay > MAX_VISIBILITY {
        envelope.not_before = now.checked_add(delay).map(rfc3339);
    }
    for (name, value) in &options.headers {
        envelope.insert_header(name, value)?;
    }
    check_attributes(&envelope, &options)?;
    let nonce = options
        .in_order
        .then(|| Announcement::mark(&mut envelope, options.ttl, core.runtime()))
        .transpose()?;
    if nonce.is_some() && !core.orders_groups {
        // Reserves the space of the page.
        stamp_page(&mut envelope, 0)?;
    }
    // A forwarded event already has a time.
    if envelope.time.is_none() {
        envelope.time = Some(stamp(now));
    }
    let span = span_of(core, &mut envelope, purpose);

    let expires = options.ttl.and_then(|ttl| now.checked_add(ttl));
    let encoding = core.settings().encoding;
    let (text, blob) = fit(core, &mut envelope, encoding, core.claim_checks.max_bytes())?;
    let attributes = text.len().saturating_sub(envelope.payload.inline().map_or(0, Bytes::len));
    reserve_history_space(core, &envelope, attributes, encoding)?;
    let hidden = delay.min(MAX_VISIBILITY);
    let put = PutMessage::new(text).with_visibility_delay(hidden).with_ttl(options.ttl);
    let announcement = nonce.map(|nonce| Announcement::new(&envelope, nonce, delay)).transpose()?;
    // A storage that keeps the order itself receives the key as the group, and no position is announced.
    let group = announcement.is_some().then(|| envelope.key.clone()).flatten();
    let put = put.with_group(group.filter(|_| core.orders_groups));
    let announcement = announcement.filter(|_| !core.orders_groups);
    let put = put.with_job(envelope.source, Arc::clone(&envelope.id)).with_shard_key(envelope.key);
    let hidden_until = if hidden.is_zero() { None } else { now.checked_add(hidden) };
    let (id, kind, blob) = (envelope.id, envelope.kind, blob.map(Box::new));
    Ok(Prepared { id, put, blob, expires, announcement, hidden_until, kind, span })
}

/// Starts the span of a message's send or creation, and writes the trace context into the message. A message
/// that already has a context keeps it.
fn span_of(core: &QueueCore, envelope: &mut Envelope, purpose: Purpose) -> OpenSpan {
    let (queue, id) = (&core.name, &*envelope.id);
    let span = match purpose {
        _ if envelope.traceparent.is_some() => OpenSpan::none(),
        Purpose::One => {
            core.observers().span(|| Step::Send { queue, id: Some(id), messages: 1, created: &[] })
        }
        Purpose::OneOfMany => core.observers().span(|| Step::Create { queue, id }),
        Purpose::Check => OpenSpan::none(),
    };
    if envelope.traceparent.is_none() {
        let runtime = core.runtime();
        let own = || match crate::trace::current() {
            Some(parent) => parent.child(runtime),
            None => TraceContext::root(runtime),
        };
        envelope.traceparent = Some(span.context().unwrap_or_else(own).traceparent());
        if let Some(state) = span.tracestate() {
            keep_state(envelope, &state);
        }
    }
    span
}

/// Refuses an event that no worker could read, and more headers than a send may add. The headers of a
/// forwarded event do not count.
fn check_attributes(envelope: &Envelope, options: &SendOptions) -> Result<(), Error> {
    check_length("source", &envelope.source)?;
    envelope.check_attributes().map_err(|error| {
        Error::new(ErrorKind::Invalid, "the event has too many attributes").with_source(error)
    })?;
    let headers = options.headers.keys().filter(|name| !is_own_header(name)).count();
    if headers > MAX_HEADERS {
        let text = format!("a job has {headers} headers; {MAX_HEADERS} are allowed");
        return Err(Error::new(ErrorKind::Invalid, text));
    }
    Ok(())
}

fn payload<C: Codec>(data: Bytes) -> Result<Payload, Error> {
    if TypeId::of::<C>() == TypeId::of::<Json>() {
        return Ok(Payload::Json(JsonText::written_by_serde_json(data)));
    }
    if !is_json(C::CONTENT_TYPE) {
        return Ok(Payload::Binary(data));
    }
    let checked = JsonText::check(data);
    let invalid = |e| {
        let declared = C::CONTENT_TYPE;
        let text = format!(
            "the codec declares `{declared}` but wrote no JSON: declare the media type that it writes"
        );
        Error::new(ErrorKind::Invalid, text).with_source(e)
    };
    checked.map(Payload::Json).map_err(invalid)
}

/// Returns the delay of a message.
///
/// # Errors
/// [`Invalid`](ErrorKind::Invalid) for a delay or a time to live out of range, and for a time to live that
/// ends before the delay.
fn delay(options: &SendOptions, now: SystemTime) -> Result<Duration, Error> {
    let delay = match (options.delay, options.at) {
        (Some(_), Some(_)) => {
            return Err(Error::new(ErrorKind::Invalid, "set a delay or a time, not both"));
        }
        (Some(delay), None) => delay,
        // A time in the past means now.
        (None, Some(moment)) => moment.duration_since(now).unwrap_or_default(),
        (None, None) => Duration::ZERO,
    };
    if delay > MAX_DELAY {
        return Err(Error::new(ErrorKind::Invalid, "a delay may be at most 10 years"));
    }
    if options.ttl.is_some_and(|ttl| ttl <= delay || ttl < Duration::from_secs(1)) {
        return Err(Error::new(
            ErrorKind::Invalid,
            "the time to live must be at least 1 second and longer than the delay",
        ));
    }
    Ok(delay)
}

/// Returns the message for a text that was prepared for a queue and stored in a record. The key and the order
/// come from its event.
///
/// # Errors
/// The storage does not answer whether it keeps the order itself.
pub(crate) async fn message_of(
    store: &Queues,
    queue: &QueueName,
    text: &str,
) -> Result<PutMessage, StoreError> {
    let put = PutMessage::new(text);
    let Ok(Parsed::Event(event)) = parse(text) else { return Ok(put) };
    let keeps_order = is_in_order(&event) && store.orders_groups(queue).await?;
    let group = event.key.clone().filter(|_| keeps_order);
    Ok(put.with_group(group).with_shard_key(event.key))
}

pub(crate) fn new_id(runtime: &Runtime) -> Arc<str> {
    (&*runtime.uuid_v7().hyphenated().encode_lower(&mut Uuid::encode_buffer())).into()
}

fn stamp(now: SystemTime) -> Arc<str> {
    thread_local! {
        /// The last millisecond that was written, and its text: under load many messages share it.
        static LAST: RefCell<(i64, Arc<str>)> = RefCell::new((i64::MIN, Arc::from("")));
    }
    let millisecond = Timestamp::try_from(now).map_or(i64::MIN, Timestamp::as_millisecond);
    LAST.with_borrow_mut(|last| {
        if last.0 != millisecond || millisecond == i64::MIN {
            *last = (millisecond, rfc3339(now).into());
        }
        Arc::clone(&last.1)
    })
}
