//! No acknowledged job is lost.

use std::time::Duration;

use super::evidence::{Job, is_of_dead_letters};
use super::{Evidence, Finding};
use crate::world::ledger::{Entry, Fact, RunEnd, Verdict};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let end = evidence.history.last().map(|entry| entry.at).unwrap_or_default();
    let mut found = Vec::new();
    for job in evidence.jobs() {
        let Some(at) = acknowledged(&job) else { continue };
        let is_kept =
            [&evidence.dead, &evidence.left, &evidence.accounted].iter().any(|ids| ids.contains(&**job.id));
        let done =
            job.entries.iter().any(|entry| matches!(entry.fact, Fact::RunEnded { end: RunEnd::Done, .. }));
        let expired = job.expires().any(|expires| expires < end + Duration::from_secs(1));
        if !done && !expired && !is_kept && !was_cancelled(&job) {
            found.push(job.finding(
                "an acknowledged job is lost",
                format!("it was acknowledged at {at:?}, and neither ran to its end nor is it dead-lettered"),
            ));
        }
    }
    found
}

/// Returns the time of the answer to a sender that its job is stored. Only for jobs that the library sends itself the answer to the put
/// is the answer to the send.
fn acknowledged(job: &Job<'_>) -> Option<Duration> {
    let is_recorded = job.entries.iter().any(|entry| matches!(entry.fact, Fact::SendBegan { .. }));
    let is_answer = |fact: &Fact| match fact {
        Fact::Sent { verdict, .. } => *verdict == Verdict::Acknowledged,
        Fact::Put { verdict, queue, .. } => {
            !is_recorded && *verdict == Verdict::Acknowledged && !is_of_dead_letters(queue)
        }
        _ => false,
    };
    job.entries.iter().rev().find(|entry| is_answer(&entry.fact)).map(|entry| entry.at)
}

/// Returns whether the library took a message back that it had just sent itself: its process deleted it without having received it.
fn was_cancelled(job: &Job<'_>) -> bool {
    let is_recorded = job.entries.iter().any(|entry| matches!(entry.fact, Fact::SendBegan { .. }));
    let mut deleted = job.entries.iter().filter(|entry| matches!(entry.fact, Fact::Deleted { .. }));
    !is_recorded
        && deleted.any(|entry| {
            let is_receiver =
                |other: &&&Entry| other.node == entry.node && matches!(other.fact, Fact::Received { .. });
            !job.entries.iter().any(|other| is_receiver(&other))
        })
}
