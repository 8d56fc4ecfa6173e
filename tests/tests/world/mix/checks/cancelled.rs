//! Judges that a job that was certainly cancelled does not run.

use jobqueue_testing::world::{Entry, Fact, Finding};

use super::{Evidence, finding, is_of};
use crate::mix::diary::Note;

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, note) in evidence.diary.notes() {
        let Note::Cancelled { id } = note else { continue };
        let is_send = |entry: &&Entry| is_of(entry, &id) && matches!(entry.fact, Fact::SendBegan { .. });
        let sends = evidence.history.iter().filter(is_send);
        if sends.count() == 1
            && let Some(began) = evidence.began(&id)
        {
            found.push(finding(
                "a cancelled job runs",
                &id,
                format!("it was taken back for certain (entry {number}), and runs (entry {began})"),
            ));
        }
    }
    found
}
