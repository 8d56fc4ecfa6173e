//! The event of a dead letter.

use bytes::Bytes;

use super::disposition::Rejection;
use super::leased_job::{Content, LeasedJob};
use crate::clock::rfc3339;
use crate::envelope::{
    DeadLetterNote, Envelope, EventDigest, JsonText, Parsed, Payload, UNREADABLE_KIND, parse,
};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::printable;
use crate::storage::PeekedMessage;

/// The source of dead letters whose text is not an event. Their id is the storage's message id, which stays
/// the same at every delivery.
pub const UNREADABLE_SOURCE: &str = "/jobqueue/external";

/// The maximum length of a worker's name in a dead letter, in characters.
const MAX_WORKER_CHARS: usize = 200;

pub(crate) fn dead_envelope(
    job: &LeasedJob,
    rejection: &Rejection,
    attempts: u32,
) -> Result<Envelope, Error> {
    let mut envelope = match &*job.content() {
        Content::Event(envelope) => (**envelope).clone(),
        Content::Unreadable(message) => wrap_unreadable(job, message.text.as_deref())?,
    };
    envelope.history.attempts = envelope.history.attempts.saturating_add(attempts);
    envelope.history.last_error = Some(printable(&rejection.detail, crate::envelope::MAX_ERROR_CHARS));
    envelope.dead_letter = Some(DeadLetterNote {
        reason: rejection.reason.as_str().to_owned(),
        queue: job.core.name.as_str().to_owned(),
        message: Some(job.lease.message_id().to_string()),
        // By the storage's clock: passes over dead letters compare it with the time at which they began.
        time: rfc3339(job.times.now()),
        deliveries: job.dequeue_count,
        worker: Some(job.core.options.worker.chars().take(MAX_WORKER_CHARS).collect()),
    });
    Ok(envelope)
}

/// Returns the payload of a dead letter that keeps an unreadable text.
fn kept_text(text: &str) -> Result<Payload, Error> {
    let json = serde_json::to_vec(text).map_err(|e| {
        Error::new(ErrorKind::Undecodable, "the text cannot be stored in a dead letter").with_source(e)
    })?;
    Ok(Payload::Json(JsonText::written_by_serde_json(json)))
}

fn wrap_unreadable(job: &LeasedJob, text: Option<&str>) -> Result<Envelope, Error> {
    let payload = text.map_or(Ok(Payload::None), kept_text)?;
    let id = job.lease.message_id().to_string();
    let mut envelope = Envelope::new(id, UNREADABLE_SOURCE, UNREADABLE_KIND, payload);
    envelope.content_type = Some("text/plain".into());
    Ok(envelope)
}

/// Identifies one end of a job. All copies of a dead letter share it; another end of the same job has
/// another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct DeathOf {
    pub(crate) event: EventDigest,
    /// The id of the message that was dead-lettered.
    pub(crate) message: String,
}

impl DeathOf {
    /// Returns the end that a dead letter records; `None` if it records none.
    pub(crate) fn of(dead_letter: &Envelope) -> Option<Self> {
        let message = dead_letter.dead_letter.as_ref()?.message.clone()?;
        let event = if *dead_letter.kind == *UNREADABLE_KIND {
            // The message id is enough: the digest of some texts changes when they move to a blob.
            Envelope { payload: Payload::None, ..dead_letter.clone() }.digest()
        } else {
            dead_letter.digest()
        };
        Some(Self { event, message })
    }
}

/// Returns the original text from a dead letter of kind [`UNREADABLE_KIND`].
pub fn unwrap_unreadable(envelope: &Envelope, data: &Bytes) -> Option<String> {
    (*envelope.kind == *UNREADABLE_KIND).then(|| serde_json::from_slice(data).ok()).flatten()
}

pub(crate) fn events(letters: &[PeekedMessage]) -> impl Iterator<Item = Envelope> + '_ {
    letters.iter().filter_map(|message| match parse(message.text.as_deref().ok()?) {
        Ok(Parsed::Event(event)) => Some(*event),
        _ => None,
    })
}
