//! A process that has lost its lease settles nothing (I5).

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
                Fact::RunBegan { delivery, .. } => newest = newest.max(*delivery),
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
    let stopped = || {
        let before = evidence.history[..settled.number].iter().rev();
        let before = before.take_while(|entry| entry.at + Duration::from_secs(120) > settled.at);
        before.filter(|entry| entry.node == settled.node).any(|entry| matches!(entry.fact, Fact::Incident(_)))
    };
    match outcome {
        Outcome::Completed => true,
        Outcome::Retried(_) => !stopped(),
        _ => false,
    }
}
