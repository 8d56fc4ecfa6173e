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

/// Returns whether the library took back a message that it had just sent itself: its process put the message,
/// and deleted it without having received it.
fn was_cancelled(job: &Job<'_>) -> bool {
    let is_recorded = job.entries.iter().any(|entry| matches!(entry.fact, Fact::SendBegan { .. }));
    let mut deleted = job.entries.iter().filter(|entry| matches!(entry.fact, Fact::Deleted { .. }));
    !is_recorded
        && deleted.any(|entry| {
            let own = || job.entries.iter().filter(|other| other.node == entry.node);
            let is_put =
                |other: &&Entry| other.number < entry.number && matches!(other.fact, Fact::PutBegan { .. });
            let is_received = own().any(|other| matches!(other.fact, Fact::Received { .. }));
            own().any(is_put) && !is_received
        })
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    /// Returns the findings about a job with these facts, which happen in processes at seconds.
    fn findings_of(facts: Vec<(u64, &'static str, Fact)>) -> Vec<Finding> {
        let entry = |(number, (at, node, fact)): (usize, (u64, &str, Fact))| {
            let is_of_job = !matches!(fact, Fact::Noted(_));
            let (at, job) = (Duration::from_secs(at), is_of_job.then(|| "j".into()));
            Entry { number, at, node: node.into(), job, fact }
        };
        let history = facts.into_iter().enumerate().map(entry).collect();
        check(&Evidence { history, ..Evidence::default() })
    }

    /// Returns the facts of a put that is acknowledged.
    fn put(expires: Option<Duration>) -> [(u64, &'static str, Fact); 2] {
        let (queue, verdict) = (|| "orders".into(), Verdict::Acknowledged);
        let began = Fact::PutBegan { queue: queue() };
        [(0, "w", began), (0, "w", Fact::Put { queue: queue(), verdict, expires })]
    }

    fn deleted(node: &'static str) -> (u64, &'static str, Fact) {
        (2, node, Fact::Deleted { queue: "orders".into() })
    }

    #[test]
    fn job_with_a_time_to_live_that_is_deleted_unrun_is_found() {
        let received = Fact::Received {
            queue: "orders".into(),
            inserted: SystemTime::UNIX_EPOCH,
            delivery: 1,
            asked: 0,
        };
        let with = |deleted: Option<(u64, &'static str, Fact)>| {
            let put = put(Some(Duration::from_secs(60))).into_iter();
            let end = (600, "w", Fact::Noted("end".to_owned()));
            findings_of(put.chain([(1, "w", received.clone())]).chain(deleted).chain([end]).collect())
        };
        assert!(with(None).is_empty());
        assert_eq!(with(Some(deleted("w")))[0].what, "an acknowledged job is lost");
    }

    #[test]
    fn deletion_of_a_job_that_another_process_has_sent_is_found() {
        let deleted_by = |node| findings_of(put(None).into_iter().chain([deleted(node)]).collect());
        assert!(deleted_by("w").is_empty());
        assert_eq!(deleted_by("another")[0].what, "an acknowledged job is lost");
    }
}
