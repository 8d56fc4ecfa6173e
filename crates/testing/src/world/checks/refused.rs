//! Judges that a job whose send was refused does not run.

use super::evidence::{Job, is_of_dead_letters};
use super::{Evidence, Finding};
use crate::world::ledger::{Fact, Verdict};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for job in evidence.jobs() {
        let Some(run) = job.runs.first() else { continue };
        if is_refused(&job) && !is_put_by_another(&job, run.began.number) {
            found.push(job.finding(
                "a refused job runs",
                format!("every send of it was refused for certain, and it ran at {:?}", run.began.at),
            ));
        }
    }
    found
}

/// Returns whether every send was refused. For jobs that the library sends itself, the puts count as the
/// sends.
fn is_refused(job: &Job<'_>) -> bool {
    let recorded = job.entries.iter().filter_map(|entry| match &entry.fact {
        Fact::SendBegan { .. } => Some(None),
        Fact::Sent { verdict, .. } => Some(Some(*verdict)),
        _ => None,
    });
    let put = job.entries.iter().filter_map(|entry| match &entry.fact {
        Fact::PutBegan { queue, .. } if !is_of_dead_letters(queue) => Some(None),
        Fact::Put { queue, verdict, .. } if !is_of_dead_letters(queue) => Some(Some(*verdict)),
        _ => None,
    });
    let recorded: Vec<_> = recorded.collect();
    let sends = if recorded.contains(&None) { recorded } else { put.collect() };
    let (began, answers): (Vec<_>, Vec<_>) = sends.into_iter().partition(Option::is_none);
    let refused = answers.iter().all(|verdict| *verdict == Some(Verdict::Refused));
    !began.is_empty() && answers.len() >= began.len() && refused
}

/// Returns whether, before an entry, a message of the job was put while no send of it was pending. A sender
/// that takes over from another sender sends its own message under the same id, and may die before it records
/// that send.
fn is_put_by_another(job: &Job<'_>, before: usize) -> bool {
    let is_recorded = job.entries.iter().any(|entry| matches!(entry.fact, Fact::SendBegan { .. }));
    let mut pending_sends = 0;
    is_recorded
        && job.entries.iter().take_while(|entry| entry.number < before).any(|entry| {
            match &entry.fact {
                Fact::SendBegan { .. } => pending_sends += 1,
                Fact::Sent { .. } => pending_sends -= 1,
                Fact::PutBegan { queue } => return pending_sends == 0 && !is_of_dead_letters(queue),
                _ => {}
            }
            false
        })
}
