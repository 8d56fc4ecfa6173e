//! Judges that no acknowledged job is lost.

use std::time::Duration;

use super::evidence::{EXPIRY_MARGIN, Job, is_of_dead_letters};
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
        let expired =
            job.expires().any(|expires| expires < end + Duration::from_secs(1)) && !was_deleted(&job);
        if !done && !expired && !is_kept && !was_cancelled(&job) {
            found.push(job.finding(
                "an acknowledged job is lost",
                format!("it was acknowledged at {at:?}, and neither ran to its end nor is it dead-lettered"),
            ));
        }
    }
    found
}

/// Returns whether a process deleted the only message of a job before it could expire. In that case the time
/// to live did not end the job.
fn was_deleted(job: &Job<'_>) -> bool {
    let first = job.expires().min();
    let deleted = job.entries.iter().find(|entry| {
        matches!(&entry.fact, Fact::Deleted { queue } if !is_of_dead_letters(queue))
            && first.is_none_or(|expires| entry.at + EXPIRY_MARGIN < expires)
    });
    deleted.is_some_and(|deleted| !job.has_copies(deleted.number))
}

/// Returns the time at which the sender learned that its job is stored. For jobs that the library itself
/// sends, the answer to the put takes the place of the answer to the send.
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

/// Returns whether the library took back a message that it had just sent itself: its process deleted the
/// message without having received it.
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

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// Returns the findings about a job with a time to live of a minute that a worker receives and, if
    /// `deleted`, deletes.
    fn findings(deleted: bool) -> Vec<Finding> {
        let queue = || "orders".into();
        let expires = Some(Duration::from_secs(60));
        let mut facts = vec![
            (0, Fact::PutBegan { queue: queue() }),
            (0, Fact::Put { queue: queue(), verdict: Verdict::Acknowledged, expires }),
            (1, Fact::Received { queue: queue(), inserted: SystemTime::UNIX_EPOCH, delivery: 1, asked: 0 }),
        ];
        facts.extend(deleted.then(|| (2, Fact::Deleted { queue: queue() })));
        facts.push((600, Fact::Noted("end".to_owned())));
        let entry = |(number, (at, fact)): (usize, (u64, Fact))| {
            let is_of_job = !matches!(fact, Fact::Noted(_));
            let (at, job) = (Duration::from_secs(at), is_of_job.then(|| "j".into()));
            Entry { number, at, node: "w".into(), job, fact }
        };
        let history = facts.into_iter().enumerate().map(entry).collect();
        check(&Evidence { history, ..Evidence::default() })
    }

    #[test]
    fn job_with_a_time_to_live_that_is_deleted_unrun_is_found() {
        assert!(findings(false).is_empty());
        assert_eq!(findings(true)[0].what, "an acknowledged job is lost");
    }
}
