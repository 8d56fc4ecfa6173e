//! Decodes a leased text: returns a job that can run, or why it cannot.

use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use tokio::time::Instant;

use super::dead_envelope::{UNREADABLE_SOURCE, dead_envelope};
use super::deferral::DeferralCause;
use super::disposition::{Disposition, NotRun, Rejection, deferred, rejected};
use super::leased_job::{Content, LeasedJob, UnreadableText};
use crate::claim_check::PayloadError;
use crate::clock::parse_rfc3339;
use crate::envelope::{
    Envelope, EnvelopeError, History, JsonText, Parsed, Payload, RAW_KIND, fits_with_room, parse,
};
use crate::job::outcome::{Reason, chain};
use crate::lease::Lease;
use crate::message::{DecodeError, MessageDefaults};
use crate::queue_core::{MAX_DELAY, QueueCore};
use crate::settings::QueueSettings;
use crate::storage::{LeasedMessage, MAX_VISIBILITY};

/// The dequeue count of a storage that does not count deliveries. The number of the delivery is then the last
/// recorded number plus 1.
const NOT_COUNTED: u32 = 0;
/// The problem of a payload without an envelope.
const NO_ENVELOPE: &str = "the text has no envelope, and the queue has not exactly one message type";
/// The problem of an event without space for a history.
const NO_HISTORY_SPACE: &str =
    "the attributes of the event leave no room for the notes of its deliveries; send fewer or shorter ones";
/// The maximum number of bytes that deliveries add to an external producer's event, including references to
/// the payload and the checkpoint.
const EXTERNAL_HISTORY_RESERVE: usize = 4_096;

#[derive(Debug)]
pub(crate) struct Incoming {
    pub(crate) leased: LeasedMessage,
    /// The time just before the request was sent.
    pub(crate) requested: Instant,
    /// The queue's settings at the time of the request.
    pub(crate) settings: Arc<QueueSettings>,
}

/// The message kinds that a reader of the queue knows.
pub(crate) struct Kinds<'k> {
    /// The kind of payloads without an envelope; `None` unless the queue has exactly one kind.
    pub(crate) of_raw: Option<&'static str>,
    /// Returns the newest known version of a kind and the defaults of its message type; `None` for an unknown
    /// kind.
    pub(crate) find: &'k (dyn Fn(&str) -> Option<(u32, MessageDefaults)> + Sync),
    /// The text for operators about a message of an unknown kind.
    pub(crate) unknown: &'static str,
}

/// Starts the lease of a message and reads the message. Returns the payload of its job, or a disposition: a
/// rejection, which an unreadable text always gives; a release if the job must not run yet; or a deferral if
/// the kind is unknown or the payload cannot be read now.
pub(crate) fn decode(
    core: &Arc<QueueCore>,
    incoming: Incoming,
    kinds: &Kinds<'_>,
) -> impl Future<Output = (LeasedJob, Result<Bytes, NotRun>)> + Send + use<> {
    // Runs eagerly, so that the future does not have to store `incoming`.
    let (leased_job, checked) = inspect(core, incoming, kinds);
    async move {
        let data = match checked {
            // Boxed, because most payloads are inside their messages.
            Ok(()) => Box::pin(fetch(&leased_job)).await,
            Err(not_run) => Err(not_run),
        };
        (leased_job, data)
    }
}

/// Returns the payload of a job that may run; `None` if the payload is in a blob.
pub(super) fn inline_payload(leased_job: &LeasedJob) -> Option<Result<Bytes, NotRun>> {
    let checks = &leased_job.core.claim_checks;
    let data = leased_job.with_envelope(|event| checks.inline(&event.payload)).flatten()?;
    Some(data.map_err(payload_failure))
}

/// Returns the payload of a job from its message or its blob.
pub(super) async fn fetch(leased_job: &LeasedJob) -> Result<Bytes, NotRun> {
    let core = &leased_job.core;
    let payload = leased_job.with_envelope(|event| event.payload.clone()).unwrap_or(Payload::None);
    core.claim_checks.payload(&core.name, &payload).await.map_err(payload_failure)
}

/// Starts the lease of a message, decodes the message, and checks whether its job may run, as far as the
/// event says.
pub(crate) fn inspect(
    core: &Arc<QueueCore>,
    incoming: Incoming,
    kinds: &Kinds<'_>,
) -> (LeasedJob, Result<(), NotRun>) {
    let Incoming { leased, requested, settings } = incoming;
    let (content, delivery) = read(&leased, kinds.of_raw);
    let known = match &content {
        Content::Event(event) => (kinds.find)(&event.kind),
        Content::Unreadable(_) => None,
    };
    let defaults = known.map_or_else(MessageDefaults::new, |(_, defaults)| defaults);
    let terms = core.terms(&settings, &defaults);
    let lease = Lease::start(Arc::clone(&core.leased_queue), &leased, requested, terms);
    let limits = settings.limits(&defaults);
    let leased_job = LeasedJob::new(Arc::clone(core), lease, &leased, delivery, settings, limits, content);
    refuse_without_room(&leased_job, leased.text.as_deref().unwrap_or_default());
    let checked = match &*leased_job.content() {
        Content::Event(event) => check_event(event, &leased_job, kinds),
        Content::Unreadable(message) => {
            Err(rejected(Rejection::new(message.reason.clone(), &message.problem)))
        }
    };
    (leased_job, checked)
}

/// Marks an event as unreadable if its producer's attributes leave no space for a history: its attempts could
/// not be counted.
fn refuse_without_room(job: &LeasedJob, text: &str) {
    if fits_with_room(text, EXTERNAL_HISTORY_RESERVE, job.settings.encoding) {
        return;
    }
    // The largest history, apart from texts that can be shortened.
    let longest = Rejection::new(Reason::new(&"x".repeat(64)), "");
    let has_room = |mut event: Envelope| {
        event.history = History { attempts: u32::MAX - 1, uncounted: u32::MAX, ..event.history };
        job.render(&mut event).is_ok()
    };
    // A handler that has finished does not run again, however little space its result leaves.
    let is_event = matches!(&*job.content(), Content::Event(event) if event.history.finished.is_none());
    if is_event && !dead_envelope(job, &longest, 1).is_ok_and(has_room) {
        let (reason, problem) = (Reason::DECODE_ERROR, NO_HISTORY_SPACE.to_owned());
        let message = UnreadableText { text: Some(text.to_owned()), reason, problem };
        *job.content() = Content::Unreadable(Box::new(message));
    }
}

fn check_event(event: &Envelope, leased_job: &LeasedJob, kinds: &Kinds<'_>) -> Result<(), NotRun> {
    let now = leased_job.times.received;
    let unknown = unknown(event, leased_job, kinds);
    // Limits belong to the message type, so only a reader that knows the type may apply them.
    if let Some(rejection) =
        recorded_rejection(event).or_else(|| exhausted(event, leased_job).filter(|_| unknown.is_none()))
    {
        return Err(rejected(rejection));
    }
    match not_before(event).map_err(rejected)?.and_then(|time| time.duration_since(now).ok()) {
        // `send` refuses such a time, too. The message would be put back again and again without being
        // counted.
        Some(wait) if wait > MAX_DELAY + MAX_VISIBILITY => {
            let problem = "the attribute `notbefore` is more than 10 years away";
            return Err(rejected(Rejection::new(Reason::DECODE_ERROR, problem)));
        }
        Some(wait) if !wait.is_zero() => {
            return Err(Box::new(Disposition::Release(wait.min(MAX_VISIBILITY))));
        }
        _ => {}
    }
    unknown.map_or(Ok(()), Err)
}

/// Returns the disposition of a message whose kind or version the reader does not know.
fn unknown(event: &Envelope, leased_job: &LeasedJob, kinds: &Kinds<'_>) -> Option<NotRun> {
    let Some((newest, _)) = (kinds.find)(&event.kind) else {
        // The queue has several types, so the event is rejected like a payload without an envelope.
        if *event.kind == *RAW_KIND {
            return Some(rejected(Rejection::new(Reason::DECODE_ERROR, NO_ENVELOPE)));
        }
        return Some(deferred(DeferralCause::UnknownKind, kinds.unknown.to_owned()));
    };
    let found = leased_job.version_of(event).filter(|found| *found > newest)?;
    let error = DecodeError::unreadable_version(found, newest);
    Some(deferred(DeferralCause::NewerVersion, chain(&error)))
}

/// Reads the text of a message. Returns its content and the number of the delivery.
fn read(leased: &LeasedMessage, raw: Option<&'static str>) -> (Content, u32) {
    let unreadable = |text: Option<&str>, reason, problem: &str| {
        let (text, problem) = (text.map(ToOwned::to_owned), problem.to_owned());
        let message = UnreadableText { text, reason, problem };
        (Content::Unreadable(Box::new(message)), leased.dequeue_count.max(1))
    };
    let text = match &leased.text {
        Ok(text) => text,
        Err(problem) => return unreadable(None, Reason::DECODE_ERROR, problem),
    };
    let mut event = match (parse(text), raw) {
        (Ok(Parsed::Event(mut event)), Some(kind)) if *event.kind == *RAW_KIND => {
            event.kind = kind.into();
            event
        }
        (Ok(Parsed::Event(event)), _) => event,
        (Ok(Parsed::Bare(json)), Some(kind)) => {
            Box::new(event_of_raw(leased.message.id.as_str(), kind, json))
        }
        (Ok(Parsed::Bare(_)), None) => {
            return unreadable(Some(text), Reason::DECODE_ERROR, NO_ENVELOPE);
        }
        (Err(error @ EnvelopeError::Reference(_)), _) => {
            return unreadable(Some(text), Reason::BAD_REFERENCE, &chain(&error));
        }
        (Err(error), _) => return unreadable(Some(text), Reason::DECODE_ERROR, &chain(&error)),
    };
    let delivery = discard_forged_history(&mut event, leased.dequeue_count);
    (Content::Event(event), delivery)
}

/// Removes every part of the history that the framework has not written. Returns the number of this delivery,
/// from 1.
///
/// Any producer can write any attribute. A history is the framework's own if it names an earlier delivery:
/// its number is below the dequeue count, which the storage keeps and no sender can set. A storage that
/// changes a message by writing a copy must continue the count of the original.
pub fn discard_forged_history(envelope: &mut Envelope, dequeue_count: u32) -> u32 {
    let history = &mut envelope.history;
    let delivery = match dequeue_count {
        NOT_COUNTED => history.delivery.saturating_add(1),
        count => count,
    };
    let is_own = (1..delivery).contains(&history.delivery);
    if !is_own {
        envelope.dead_letter = None;
        *history = redriven_history(history);
    }
    // Each earlier delivery is uncounted at most once.
    history.uncounted = history.uncounted.min(delivery - 1);
    if is_own {
        history.uncounted = history.uncounted.min(history.delivery);
    }
    delivery
}

/// Returns the part of the history that a redriven job keeps. Its new message starts without deliveries.
fn redriven_history(history: &mut History) -> History {
    let past = history.past.take();
    let checkpoint = history.checkpoint.take().filter(|_| past.is_some());
    History { past, checkpoint, ..History::default() }
}

/// Returns the disposition of a message whose payload cannot be read.
fn payload_failure(error: PayloadError) -> NotRun {
    match error.reason() {
        Some(reason) => rejected(Rejection::new(reason, chain(&error))),
        None if error.is_missing() => deferred(DeferralCause::PayloadMissing, chain(&error)),
        None => deferred(DeferralCause::PayloadUnreadable, chain(&error)),
    }
}

/// Returns the recorded rejection of a message that an earlier delivery was about to dead-letter.
fn recorded_rejection(event: &Envelope) -> Option<Rejection> {
    let note = event.dead_letter.as_ref()?;
    let last = event.history.last_error.as_deref().unwrap_or_default();
    let has_run = event.history.attempts > 0;
    Some(Rejection { has_run, ..Rejection::new(Reason::new(&note.reason), last) })
}

/// Returns the rejection of a message that has used up its deliveries or its attempts.
fn exhausted(event: &Envelope, leased_job: &LeasedJob) -> Option<Rejection> {
    let (history, limits) = (&event.history, leased_job.limits);
    let deliveries = leased_job.dequeue_count.saturating_sub(history.uncounted);
    let attempts = history.attempts;
    if deliveries > limits.deliveries {
        let detail = format!(
            "delivered {deliveries} times with {attempts} failures reported; the job probably kills its worker"
        );
        Some(Rejection::new(Reason::MAX_DELIVERIES, detail))
    } else if attempts >= limits.attempts {
        let last = history.last_error.clone().unwrap_or_default();
        Some(Rejection::new(Reason::ATTEMPTS_EXHAUSTED, last))
    } else {
        None
    }
}

/// Returns the event for an external producer's payload without an envelope. Its id is the storage's message
/// id, which stays the same at every delivery and after a redrive.
pub(crate) fn event_of_raw(id: &str, kind: &str, json: JsonText) -> Envelope {
    let mut envelope = Envelope::new(id, UNREADABLE_SOURCE, kind, Payload::Json(json));
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

#[cfg(test)]
mod tests;
