//! Decodes a leased text: returns a job that can run, or the reason why it cannot.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use tokio::time::Instant;

use super::history;
use super::leased_job::{Content, LeasedJob};
use super::queue_core::QueueCore;
use super::room::with_room_checked;
use crate::claim_check::PayloadError;
use crate::clock::parse_rfc3339;
use crate::envelope::{Envelope, EnvelopeError, JsonText, Parsed, Payload, parse};
use crate::job::outcome::{Reason, chain, printable};
use crate::lease::{Lease, LeasedQueue};
use crate::settings::QueueSettings;
use crate::storage::{LeasedMessage, MAX_VISIBILITY};

/// A message as it was received.
#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) leased: LeasedMessage,
    /// The time before the request for it was sent.
    pub(crate) requested: Instant,
    /// The queue's settings at the time of the request.
    pub(crate) settings: Arc<QueueSettings>,
}

/// The message kinds that a reader of the queue knows.
pub(crate) trait Kinds: Send + Sync {
    /// Returns the kind of payloads without an envelope; `None` if the queue has not exactly one kind.
    fn of_raw(&self) -> Option<&'static str>;

    /// Returns whether this reader knows the kind.
    fn knows(&self, kind: &str) -> bool;
}

/// The result of decoding a leased message.
#[derive(Debug)]
pub(crate) enum Decoded {
    /// A job, with its payload.
    Ready(Bytes),
    /// A job that must not run before this time has passed.
    NotYet(Duration),
    /// A job of a kind that the reader does not know.
    UnknownKind,
    /// A job whose payload cannot be read from the storage now.
    Unavailable(PayloadError),
    /// A message that must never run. A text that is not an event always gives this.
    Rejected(Rejection),
}

/// The reason why a message is dead-lettered.
#[derive(Debug, Clone)]
pub(crate) struct Rejection {
    pub(crate) reason: Reason,
    /// One line without control characters.
    pub(crate) detail: String,
    /// True if an attempt of this delivery has failed that the message does not count yet.
    pub(super) attempted: bool,
}

impl Rejection {
    /// Returns a rejection before any attempt.
    pub(crate) fn new(reason: Reason, detail: impl AsRef<str>) -> Self {
        let detail = printable(detail.as_ref(), crate::envelope::MAX_ERROR_CHARS);
        Self { reason, detail, attempted: false }
    }

    /// Returns a rejection after a failed attempt.
    pub(crate) fn of_attempt(reason: Reason, detail: impl AsRef<str>) -> Self {
        Self { attempted: true, ..Self::new(reason, detail) }
    }
}

/// Starts the lease of a message, and reads the message.
pub(crate) fn decode(
    core: &Arc<QueueCore>,
    incoming: Incoming,
    kinds: &dyn Kinds,
) -> impl Future<Output = (LeasedJob, Decoded)> + Send + use<> {
    // Before the future begins, so that it holds the results only.
    let (leased_job, inspected) = inspect(core, incoming, kinds);
    async move {
        let decoded = match inspected {
            Inspected::Done(decoded) => decoded,
            // Boxed, because most payloads are inside their messages.
            Inspected::Stored(payload) => Box::pin(fetch(&leased_job.core, &payload)).await,
        };
        (leased_job, decoded)
    }
}

/// Starts the lease of a message that will only be put back.
pub(crate) fn lease_only(core: &Arc<QueueCore>, incoming: Incoming, kinds: &dyn Kinds) -> LeasedJob {
    inspect(core, incoming, kinds).0
}

async fn fetch(core: &QueueCore, payload: &Payload) -> Decoded {
    decoded(core.claim_checks.payload(&core.name, payload).await)
}

/// Decodes a message as far as that is possible without a request to the storage.
fn inspect(core: &Arc<QueueCore>, incoming: Incoming, kinds: &dyn Kinds) -> (LeasedJob, Inspected) {
    let Incoming { leased, requested, settings } = incoming;
    let lease = new_lease(core, &leased, requested, &settings);
    let (content, delivery, problem) = read(&leased, kinds.of_raw(), &settings);
    let leased_job = LeasedJob::new(Arc::clone(core), lease, (&leased, delivery), settings, content);
    let leased_job = with_room_checked(leased_job, leased.text.as_deref().unwrap_or_default());
    let inspected = match problem {
        Some(rejection) => Inspected::Done(Decoded::Rejected(rejection)),
        None => {
            leased_job.with_envelope(|event| inspect_event(core, event, &leased_job, kinds)).unwrap_or_else(
                // `read` reports a problem for every text that is not an event.
                || {
                    Inspected::Done(Decoded::Rejected(Rejection::new(
                        Reason::DECODE_ERROR,
                        "the message is not an event",
                    )))
                },
            )
        }
    };
    (leased_job, inspected)
}

fn new_lease(
    core: &QueueCore,
    leased: &LeasedMessage,
    requested: Instant,
    settings: &QueueSettings,
) -> Arc<Lease> {
    let queue = LeasedQueue {
        name: core.name.clone(),
        store: core.store_handle(),
        renewer_store: core.renewer_store(),
        renewer: core.renewer().clone(),
        observers: Arc::clone(core.observers()),
    };
    Lease::start(queue, leased, requested, core.terms(settings))
}

fn inspect_event(core: &QueueCore, event: &Envelope, leased_job: &LeasedJob, kinds: &dyn Kinds) -> Inspected {
    if let Some(rejection) = spent(event, leased_job) {
        return Inspected::Done(Decoded::Rejected(rejection));
    }
    match not_before(event)
        .map(|time| time.and_then(|time| time.duration_since(core.options.clock.now()).ok()))
    {
        Err(rejection) => return Inspected::Done(Decoded::Rejected(rejection)),
        Ok(Some(wait)) if !wait.is_zero() => {
            return Inspected::Done(Decoded::NotYet(wait.min(MAX_VISIBILITY)));
        }
        Ok(_) => {}
    }
    if !kinds.knows(&event.kind) {
        return Inspected::Done(Decoded::UnknownKind);
    }
    match core.claim_checks.inline(&event.payload) {
        Some(payload) => Inspected::Done(decoded(payload)),
        None => Inspected::Stored(event.payload.clone()),
    }
}

/// The result of decoding without a request to the storage.
enum Inspected {
    Done(Decoded),
    /// The payload is in a blob.
    Stored(Payload),
}

/// Reads the text of a message. Returns its content, the number of the delivery, and the problem if it is not an
/// event.
fn read(
    leased: &LeasedMessage,
    raw: Option<&'static str>,
    settings: &QueueSettings,
) -> (Content, u32, Option<Rejection>) {
    let unreadable = |text: Option<&str>, reason, problem: &str| {
        let content = Content::Unreadable(text.map(ToOwned::to_owned));
        (content, leased.dequeue_count.max(1), Some(Rejection::new(reason, problem)))
    };
    let text = match &leased.text {
        Ok(text) => text,
        Err(problem) => return unreadable(None, Reason::DECODE_ERROR, problem),
    };
    let mut event = match (parse(text), raw) {
        (Ok(Parsed::Event(event)), _) => event,
        (Ok(Parsed::Bare(json)), Some(kind)) => Box::new(event_of_raw(leased, kind, json)),
        (Ok(Parsed::Bare(_)), None) => {
            let problem = "the text has no envelope, and the queue has not exactly one message type";
            return unreadable(Some(text), Reason::DECODE_ERROR, problem);
        }
        (Err(error @ EnvelopeError::Reference(_)), _) => {
            return unreadable(Some(text), Reason::BAD_REFERENCE, &chain(&error));
        }
        (Err(error), _) => return unreadable(Some(text), Reason::DECODE_ERROR, &chain(&error)),
    };
    event.version = event.version.or(settings.raw_version);
    let delivery = history::believe(&mut event, leased.dequeue_count, settings);
    (Content::Event(event), delivery, None)
}

fn decoded(payload: Result<Bytes, PayloadError>) -> Decoded {
    match payload {
        Ok(data) => Decoded::Ready(data),
        Err(error) => match error.reason() {
            Some(reason) => Decoded::Rejected(Rejection::new(reason, chain(&error))),
            None => Decoded::Unavailable(error),
        },
    }
}

/// Returns the reason why a message must not run again: it was about to be dead-lettered, or has used up its
/// deliveries or its attempts.
fn spent(event: &Envelope, leased_job: &LeasedJob) -> Option<Rejection> {
    let (history, settings) = (&event.history, &leased_job.settings);
    let deliveries = leased_job.dequeue_count.saturating_sub(history.uncounted);
    let attempts = history.attempts;
    let last = || history.last_error.clone().unwrap_or_default();
    if let Some(note) = &event.dead_letter {
        Some(Rejection::new(Reason::new(&note.reason), last()))
    } else if deliveries > settings.max_deliveries {
        let detail = format!(
            "delivered {deliveries} times with {attempts} failures reported; the job probably kills its worker"
        );
        Some(Rejection::new(Reason::MAX_DELIVERIES, detail))
    } else if attempts >= settings.poison_threshold {
        Some(Rejection::new(Reason::ATTEMPTS_EXHAUSTED, last()))
    } else {
        None
    }
}

/// Returns the event for the raw payload of another producer. Its id is the storage's, which stays the same at every
/// delivery.
fn event_of_raw(leased: &LeasedMessage, kind: &'static str, json: JsonText) -> Envelope {
    let id = leased.message.id.as_str();
    let mut envelope = Envelope::new(id, "/jobqueue/external", kind, Payload::Json(json));
    envelope.version = None;
    envelope
}

/// Returns the time before which the job must not run.
fn not_before(event: &Envelope) -> Result<Option<SystemTime>, Rejection> {
    let Some(text) = event.not_before.as_deref() else { return Ok(None) };
    match parse_rfc3339(text) {
        Some(time) => Ok(Some(time)),
        None => {
            let problem = "the attribute `notbefore` is not an RFC 3339 time";
            Err(Rejection::new(Reason::DECODE_ERROR, problem))
        }
    }
}
