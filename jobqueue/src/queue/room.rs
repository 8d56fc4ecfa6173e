//! Room in a message for the notes of its deliveries. A message that is full when it is sent could be neither retried
//! nor dead-lettered.

use super::dead_letter::dead_envelope;
use super::decode::Rejection;
use super::leased_job::{Content, LeasedJob};
use super::queue_core::QueueCore;
use crate::envelope::{Envelope, History, Payload, fits_with_room};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::Reason;
use crate::settings::MessageEncoding;

/// The maximum number of bytes that deliveries add to an event whose payload and checkpoint are in blobs. Error texts
/// are shortened to fit.
const ROOM: usize = 2_048;

/// The maximum number of bytes that deliveries add to the event of another producer, including payload and checkpoint
/// references.
const MOST: usize = 4_096;

/// Attributes of up to this many bytes leave room in any encoding, even if every character must be escaped.
const SMALL: usize = 16_000;

/// Checks that an event leaves room for its history. `attributes` is the approximate size of its attributes in
/// bytes.
///
/// # Errors
/// [`TooLarge`](ErrorKind::TooLarge). The size of the payload does not matter: it can move to a blob.
pub(super) fn check_room(
    core: &QueueCore,
    envelope: &Envelope,
    attributes: usize,
    encoding: MessageEncoding,
) -> Result<(), Error> {
    if attributes <= SMALL {
        return Ok(());
    }
    let mut fullest = envelope.clone();
    if !matches!(fullest.payload, Payload::Stored(_)) {
        fullest.payload = Payload::Stored(core.claim_checks.reference(&core.name, &[]));
    }
    if fits_with_room(&fullest.to_json()?, ROOM, encoding) {
        return Ok(());
    }
    let text = format!(
        "the event's attributes are too large: {ROOM} bytes of each message are reserved for notes of its deliveries"
    );
    Err(Error::new(ErrorKind::TooLarge, text))
}

/// Checks whether the event has room for a history. An event of another producer without room cannot be
/// rewritten: each of its deliveries counts as an attempt.
pub(super) fn with_room_checked(mut job: LeasedJob, text: &str) -> LeasedJob {
    if fits_with_room(text, MOST, job.settings.encoding) {
        return job;
    }
    // The longest history, apart from texts that can be shortened.
    let longest = Rejection::new(Reason::new(&"x".repeat(64)), "");
    let has_room = |mut event: Envelope| {
        event.history = History { attempts: u32::MAX - 1, uncounted: u32::MAX, ..event.history };
        job.render(&mut event).is_ok()
    };
    let is_event = matches!(&*job.content(), Content::Event(_));
    job.is_unwritable = is_event && !dead_envelope(&job, &longest, 1).is_ok_and(has_room);
    let former = job.dequeue_count.saturating_sub(1);
    if job.is_unwritable
        && let Content::Event(event) = &mut *job.content()
    {
        event.history.attempts = former;
    }
    job
}
