//! A job whose send was refused does not run.

use super::evidence::{Job, is_of_dead_letters};
use super::{Evidence, Finding};
use crate::world::ledger::{Fact, Verdict};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for job in evidence.jobs() {
        let Some(run) = job.runs.first() else { continue };
        if is_refused(&job) {
            found.push(job.finding(
                "a refused job runs",
                format!("every send of it was refused for certain, and it ran at {:?}", run.began.at),
            ));
        }
    }
    found
}

/// Returns whether every send was refused. The sends of the library itself are its puts.
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
