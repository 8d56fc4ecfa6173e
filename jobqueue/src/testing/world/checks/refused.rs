//! A job whose send was refused does not run (I3).

use super::{Evidence, Finding};
use crate::testing::world::ledger::{Fact, Verdict};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (id, entries) in evidence.by_job() {
        let mut verdicts = entries.iter().filter_map(|entry| match entry.fact {
            Fact::Sent { verdict, .. } => Some(verdict),
            _ => None,
        });
        let began = entries.iter().filter(|entry| matches!(entry.fact, Fact::SendBegan { .. })).count();
        let told = verdicts.clone().count();
        if began == 0 || told < began || !verdicts.all(|verdict| verdict == Verdict::Refused) {
            continue;
        }
        if let Some(run) = entries.iter().find(|entry| matches!(entry.fact, Fact::RunBegan { .. })) {
            found.push(Finding {
                what: "a refused job runs",
                subject: id.to_string(),
                detail: format!("every send of it was refused for certain, and it ran at {:?}", run.at),
            });
        }
    }
    found
}
