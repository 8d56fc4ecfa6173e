//! Finds events of other producers that have no space for the history of their deliveries.

use super::dead_envelope::dead_envelope;
use super::leased_job::{Content, LeasedJob};
use super::rejection::Rejection;
use crate::envelope::{Envelope, History, fits_with_room};
use crate::job::outcome::Reason;

/// The maximum number of bytes that deliveries add to the event of another producer, including payload and checkpoint
/// references.
const EXTERNAL_HISTORY_RESERVE: usize = 4_096;

/// Checks whether the event has room for a history. An event of another producer without room cannot be
/// rewritten: each of its deliveries counts as an attempt.
pub(super) fn mark_unwritable(mut job: LeasedJob, text: &str) -> LeasedJob {
    if fits_with_room(text, EXTERNAL_HISTORY_RESERVE, job.settings.encoding) {
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
