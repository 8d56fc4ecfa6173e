//! A job that was certainly cancelled does not run.

use jobqueue_testing::world::{Fact, Finding};

use super::{Evidence, finding};
use crate::mix::diary::Note;

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (number, note) in evidence.diary.notes() {
        let Note::Cancelled { id } = note else { continue };
        let sends = evidence
            .history
            .iter()
            .filter(|entry| matches!(&entry.fact, Fact::SendBegan { id: sent, .. } if **sent == *id));
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
