//! Judges that unique work is sent once within its window.

use jobqueue_testing::world::{Fact, Finding};

use super::{Evidence, finding, is_of};
use crate::mix::diary::Note;

/// The tolerance for clock differences, and for the time at which a window begins within its send.
const TOLERANCE_MILLIS: u64 = 12_000;

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let notes = evidence.diary.notes();
    let mut found = Vec::new();
    for (noted, first) in &notes {
        // Uses the window of the call itself. A sender that takes over the id of a dead sender has its own
        // window.
        let Note::Unique { key, id, at, window, is_sent: true, .. } = first else { continue };
        for (other_noted, second) in &notes {
            let Note::Unique { key: other_key, began, at: later, id: other, .. } = second else { continue };
            let within = *began > *noted && *later + TOLERANCE_MILLIS < *at + window;
            // Any earlier cancellation counts, because its request may be applied long after its note.
            let given_up = notes.iter().any(|(given_up, note)| {
                matches!(note, Note::UniqueCancelled { key: given } if given == key) && given_up < other_noted
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
    found.extend(joins_of_cleared(evidence));
    found.extend(joins_of_cancelled(evidence));
    found
}

/// Finds a send that joins a job that no worker has received, after a cancellation has returned false.
fn joins_of_cancelled(evidence: &Evidence) -> Vec<Finding> {
    let notes = evidence.diary.notes();
    let mut found = Vec::new();
    for (kept, note) in &notes {
        let Note::UniqueKept { key, began: asked } = note else { continue };
        let is_last = !notes.iter().any(|(number, note)| {
            matches!(note, Note::UniqueCancelled { key: later } if later == key) && number > asked
        });
        let joined = notes.iter().filter_map(|(_, note)| match note {
            Note::Unique { id, key: of, began, is_sent: false, .. } if of == key && began > kept => Some(id),
            _ => None,
        });
        for id in joined.filter(|_| is_last) {
            let is_sent =
                |note: &Note| matches!(note, Note::Unique { id: sent, is_sent: true, .. } if sent == id);
            let was_sent = notes.iter().any(|(noted, note)| noted < asked && is_sent(note));
            let expires = evidence.diary.plan.unique().any(|spec| spec.id == *id && spec.ttl.is_some());
            let is_received = |fact: &Fact| match fact {
                Fact::Received { .. } => true,
                Fact::TakenAway { why } => !why.starts_with("unique work cancelled"),
                _ => false,
            };
            if was_sent && !expires && evidence.first(id, is_received).is_none() {
                let kept = format!("not cancelled at entry {kept}");
                found.push(finding("unique work joins a job that was cancelled", id, kept));
            }
        }
    }
    found
}

/// Finds a send that joins a job that was sent before its queue was cleared.
fn joins_of_cleared(evidence: &Evidence) -> Vec<Finding> {
    let notes = evidence.diary.notes();
    let mut found = Vec::new();
    for (cleared, note) in &notes {
        let Note::Cleared { began: clearing } = note else { continue };
        // Leaves out jobs that were put again since, or that a canceller may hold.
        let is_undisturbed = |id: &str| {
            let later = evidence.history.get(*clearing..).unwrap_or_default();
            let put_again =
                later.iter().any(|entry| is_of(entry, id) && matches!(entry.fact, Fact::Put { .. }));
            let cancelled =
                |fact: &Fact| matches!(fact, Fact::TakenAway { why } if !why.starts_with("cleared"));
            !put_again && evidence.first(id, cancelled).is_none()
        };
        let sent = notes.iter().filter_map(|(noted, note)| match note {
            Note::Unique { id, at, window, is_sent: true, .. } if noted < clearing => Some((id, at + window)),
            _ => None,
        });
        for (id, end) in sent.filter(|(id, _)| is_undisturbed(id)) {
            let joins = |note: &Note| {
                matches!(note, Note::Unique { id: joined, began, at, is_sent: false, .. }
                    if joined == id && began > cleared && at + TOLERANCE_MILLIS < end)
            };
            if notes.iter().any(|(_, note)| joins(note)) {
                let cleared = format!("cleared at entry {cleared}");
                found.push(finding("unique work joins a job that was cleared", id, cleared));
            }
        }
    }
    found
}
