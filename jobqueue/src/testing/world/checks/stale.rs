//! A process that has lost its lease settles nothing, and runs no handler beside its successor (I5).

use std::sync::Arc;
use std::time::Duration;

use super::doubled::has_copies;
use super::{Evidence, Finding};
use crate::job::outcome::Outcome;
use crate::testing::world::ledger::{Entry, Fact};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (id, entries) in evidence.by_job() {
        // Deliveries of several copies are counted separately.
        let redriven = entries.iter().any(|entry| matches!(entry.fact, Fact::Redriven { .. }));
        if redriven || has_copies(evidence, &entries, usize::MAX) {
            continue;
        }
        let mut newest = 0;
        let mut running: Vec<(u64, Arc<str>)> = Vec::new();
        for entry in entries {
            match &entry.fact {
                Fact::RunBegan { delivery, .. } if *delivery < newest => found.push(Finding {
                    what: "a handler begins although a later delivery has begun",
                    subject: id.to_string(),
                    detail: format!(
                        "delivery {delivery} began in {} at {:?}, after {newest}",
                        entry.node, entry.at
                    ),
                }),
                Fact::RunBegan { run, delivery, .. } => {
                    found.extend(beside(evidence, &id, entry, &running));
                    running.push((*run, Arc::clone(&entry.node)));
                    newest = newest.max(*delivery);
                }
                Fact::RunEnded { run, .. } => running.retain(|(ended, _)| ended != run),
                Fact::Settled { delivery, outcome, .. }
                    if *delivery < newest && is_of_the_owner(evidence, entry, outcome) =>
                {
                    found.push(Finding {
                        what: "a worker settles a message that another one has",
                        subject: id.to_string(),
                        detail: format!(
                            "delivery {delivery} was settled at {:?}, after delivery {newest} had begun",
                            entry.at
                        ),
                    });
                }
                _ => {}
            }
        }
    }
    found
}

/// Returns whether only the owner of the message may report this outcome. A frozen process may report after it
/// continues what it did before. But if it deleted the message, nobody has received it since.
fn is_of_the_owner(evidence: &Evidence, settled: &Entry, outcome: &Outcome) -> bool {
    let stopped = || was_stopped(evidence, settled, &settled.node);
    match outcome {
        Outcome::Completed => true,
        Outcome::Retried(_) => !stopped(),
        _ => false,
    }
}

/// A run that begins while an earlier one of an undisturbed process goes on.
fn beside(evidence: &Evidence, id: &str, began: &Entry, running: &[(u64, Arc<str>)]) -> Option<Finding> {
    let (earlier, node) = running.iter().find(|(_, node)| !was_disturbed(evidence, began, node))?;
    Some(Finding {
        what: "two handlers of a job run at once",
        subject: id.to_owned(),
        detail: format!("one began in {} at {:?}, and run {earlier} goes on in {node}", began.node, began.at),
    })
}

/// Returns whether a process was frozen or otherwise disturbed within two minutes before an entry.
fn was_stopped(evidence: &Evidence, entry: &Entry, node: &str) -> bool {
    let before = evidence.history[..entry.number].iter().rev();
    let mut before = before.take_while(|before| before.at + Duration::from_secs(120) > entry.at);
    before.any(|before| *before.node == *node && matches!(before.fact, Fact::Incident(_)))
}

/// Returns whether a process was ever killed, frozen or otherwise disturbed before an entry: its handlers may never report an end.
fn was_disturbed(evidence: &Evidence, entry: &Entry, node: &str) -> bool {
    let mut before = evidence.history[..entry.number].iter();
    before.any(|before| *before.node == *node && matches!(before.fact, Fact::Incident(_)))
}
