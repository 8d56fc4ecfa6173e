//! From a leased text to a job that can be run, or the reason why not.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use jiff::Timestamp;
use tokio::time::Instant;

use super::leased_job::{Content, LeasedJob};
use super::queue_core::QueueCore;
use crate::claim_check::PayloadError;
use crate::envelope::{Envelope, EnvelopeError, JsonText, Parsed, Payload, parse};
use crate::job::outcome::{Reason, chain};
use crate::lease::Lease;
use crate::settings::QueueSettings;
use crate::storage::{LeasedMessage, MAX_VISIBILITY};

/// What a leased message turned out to be.
#[derive(Debug)]
pub(crate) enum Decoded {
    /// A job, and its payload.
    Ready(LeasedJob, Bytes),
    /// Not to be run before this time has passed.
    NotYet(LeasedJob, Duration),
    /// The payload's blob cannot be had now.
    Unavailable(LeasedJob, PayloadError),
    /// Never to be run.
    Rejected(LeasedJob, Rejection),
}

/// Why a message is dead-lettered without being run.
#[derive(Debug, Clone)]
pub(crate) struct Rejection {
    pub(crate) reason: Reason,
    pub(crate) detail: String,
    /// Whether an attempt of this delivery has failed, which the message does not count yet.
    pub(super) attempted: bool,
}

impl Rejection {
    /// Before any attempt.
    pub(crate) fn new(reason: Reason, detail: impl Into<String>) -> Self {
        Self { reason, detail: detail.into(), attempted: false }
    }

    /// After an attempt that has failed.
    pub(crate) fn of_attempt(reason: Reason, detail: impl Into<String>) -> Self {
        Self { attempted: true, ..Self::new(reason, detail) }
    }
}

/// As what a text without an envelope is read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawPayloadType {
    pub(crate) kind: &'static str,
    pub(crate) version: u32,
}

/// What can be told of a leased message without asking the storage.
enum Inspected {
    Done(Decoded),
    /// The payload is in a blob.
    Stored(LeasedJob, Payload),
}

impl QueueCore {
    /// Starts the lease of a message that was asked for at `requested`, and reads the message.
    pub(crate) async fn decode(
        self: &Arc<Self>,
        leased: LeasedMessage,
        requested: Instant,
        settings: Arc<QueueSettings>,
        bare: Option<RawPayloadType>,
    ) -> Decoded {
        match self.look(&leased, requested, settings, bare) {
            Inspected::Done(decoded) => decoded,
            // Boxed: most payloads are in their messages.
            Inspected::Stored(leased_job, payload) => Box::pin(self.fetch(leased_job, payload)).await,
        }
    }

    async fn fetch(&self, leased_job: LeasedJob, payload: Payload) -> Decoded {
        decoded(leased_job, self.claim_checks.payload(&self.name, &payload).await)
    }

    fn look(
        self: &Arc<Self>,
        leased: &LeasedMessage,
        requested: Instant,
        settings: Arc<QueueSettings>,
        bare: Option<RawPayloadType>,
    ) -> Inspected {
        let lease = Lease::start(
            self.renewer(),
            self.store_handle(),
            self.renewer_store(),
            self.name.clone(),
            leased,
            requested,
            self.terms(&settings),
        );
        let kept = Arc::clone(&settings);
        let leased_job = |content| LeasedJob::new(Arc::clone(self), lease, leased, kept, content);
        let rejected = |leased_job, rejection| Inspected::Done(Decoded::Rejected(leased_job, rejection));
        let text = match &leased.text {
            Ok(text) => text,
            Err(problem) => {
                let rejection = Rejection::new(Reason::DECODE_ERROR, problem.clone());
                return rejected(leased_job(Content::Unreadable(None)), rejection);
            }
        };
        let envelope = match parse(text) {
            Ok(Parsed::Event(envelope)) => envelope,
            Ok(Parsed::Bare(json)) => match bare {
                Some(bare) => Box::new(foreign(leased, bare, json)),
                None => {
                    let detail = "the text has no envelope, and the queue has not exactly one message type";
                    let rejection = Rejection::new(Reason::DECODE_ERROR, detail);
                    return rejected(leased_job(Content::Unreadable(Some(text.clone()))), rejection);
                }
            },
            Err(error) => {
                let reason = match error {
                    EnvelopeError::Reference(_) => Reason::BAD_REFERENCE,
                    _ => Reason::DECODE_ERROR,
                };
                let rejection = Rejection::new(reason, chain(&error));
                return rejected(leased_job(Content::Unreadable(Some(text.clone()))), rejection);
            }
        };
        let not_before = not_before(&envelope);
        let rejection = spent(leased, &envelope, &settings);
        let inline = self.claim_checks.inline(&envelope.payload);
        let stored = if inline.is_none() { envelope.payload.clone() } else { Payload::None };
        let leased_job = leased_job(Content::Event(envelope));
        if let Some(rejection) = rejection {
            return rejected(leased_job, rejection);
        }
        if let Some(wait) = not_before.and_then(|time| time.duration_since(self.options.clock.now()).ok())
            && !wait.is_zero()
        {
            return Inspected::Done(Decoded::NotYet(leased_job, wait.min(MAX_VISIBILITY)));
        }
        match inline {
            Some(payload) => Inspected::Done(decoded(leased_job, payload)),
            None => Inspected::Stored(leased_job, stored),
        }
    }
}

fn decoded(leased_job: LeasedJob, payload: Result<Bytes, PayloadError>) -> Decoded {
    match payload {
        Ok(data) => Decoded::Ready(leased_job, data),
        Err(error) => match error.reason() {
            Some(reason) => Decoded::Rejected(leased_job, Rejection::new(reason, chain(&error))),
            None => Decoded::Unavailable(leased_job, error),
        },
    }
}

/// Why a message is not delivered once more, if it has had its deliveries or its attempts.
fn spent(leased: &LeasedMessage, envelope: &Envelope, settings: &QueueSettings) -> Option<Rejection> {
    let deliveries = leased.dequeue_count.saturating_sub(envelope.history.uncounted);
    let attempts = envelope.history.attempts;
    if deliveries > settings.max_deliveries {
        let detail = format!(
            "delivered {deliveries} times with {attempts} failures reported; the job probably kills its worker"
        );
        Some(Rejection::new(Reason::MAX_DELIVERIES, detail))
    } else if attempts >= settings.poison_threshold {
        let last = envelope.history.last_error.clone().unwrap_or_default();
        Some(Rejection::new(Reason::ATTEMPTS_EXHAUSTED, last))
    } else {
        None
    }
}

/// The envelope for the bare payload of a foreign producer. Its id is the storage's, which stays the same at every
/// delivery.
fn foreign(leased: &LeasedMessage, bare: RawPayloadType, json: JsonText) -> Envelope {
    let id = leased.message.id.as_str();
    let mut envelope = Envelope::new(id, "/jobqueue/foreign", bare.kind, Payload::Json(json));
    envelope.version = bare.version;
    envelope
}

fn not_before(envelope: &Envelope) -> Option<SystemTime> {
    let time: Timestamp = envelope.not_before.as_deref()?.parse().ok()?;
    Some(SystemTime::from(time))
}
