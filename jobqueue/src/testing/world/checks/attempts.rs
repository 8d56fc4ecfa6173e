//! Attempts are bounded (I11).

use super::{Evidence, Finding};
use crate::job::outcome::Outcome;
use crate::testing::world::ledger::Fact;

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (id, entries) in evidence.by_job() {
        let mut failures = 0;
        for entry in entries {
            match &entry.fact {
                Fact::RunBegan { attempt, max_attempts, .. } if attempt > max_attempts => {
                    found.push(Finding {
                        what: "a job has too many attempts",
                        subject: id.to_string(),
                        detail: format!("attempt {attempt} of {max_attempts} began at {:?}", entry.at),
                    });
                }
                Fact::Settled { outcome: Outcome::Retried(_), .. } => failures += 1,
                // The job may be redriven, and then has all its attempts again.
                Fact::Settled { outcome: Outcome::DeadLettered(_), .. } => failures = 0,
                _ => {}
            }
        }
        if failures > 1_000 {
            found.push(Finding {
                what: "a job fails without end",
                subject: id.to_string(),
                detail: format!("{failures} failures were reported"),
            });
        }
    }
    found
}
