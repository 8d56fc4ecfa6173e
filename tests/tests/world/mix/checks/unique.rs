//! Unique work runs once in a window.

use jobqueue_testing::world::Finding;

use super::{Evidence, finding};
use crate::mix::diary::Note;

/// The difference between clocks; a window begins somewhere within its send.
const TOLERANCE_MILLIS: u64 = 12_000;

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let notes = evidence.diary.notes();
    let mut found = Vec::new();
    for (told, first) in &notes {
        // The window is that of the call: one that takes over a dead sender's id has its own.
        let Note::Unique { key, id, at, window, is_sent: true, .. } = first else { continue };
        for (other_told, second) in &notes {
            let Note::Unique { key: other_key, began, at: later, id: other, .. } = second else { continue };
            let within = *began > *told && *later + TOLERANCE_MILLIS < *at + window;
            // Its request may be applied long after the note.
            let given_up = notes.iter().any(|(given_up, note)| {
                matches!(note, Note::UniqueCancelled { key: given } if given == key) && given_up < other_told
            });
            let cancelled = evidence.is_accounted(id);
            if key == other_key && within && !given_up && !cancelled && id != other {
                found.push(finding(
                    "unique work was sent twice in its window",
                    &format!("{id} {other}"),
                    format!("key {key}: {id} at {at} ms for {window} ms, {other} at {later} ms"),
                ));
            }
        }
    }
    found
}
