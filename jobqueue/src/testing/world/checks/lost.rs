//! No acknowledged job is lost (I1, I12).

use std::time::Duration;

use super::{Evidence, Finding};
use crate::testing::world::ledger::{Fact, RunEnd, Verdict};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let end = evidence.history.last().map(|entry| entry.at).unwrap_or_default();
    let mut found = Vec::new();
    for (id, entries) in evidence.by_job() {
        let acknowledged = entries.iter().rev().find_map(|entry| match &entry.fact {
            Fact::Sent { verdict: Verdict::Acknowledged, expires, .. } => Some((entry.at, *expires)),
            _ => None,
        });
        let Some((at, expires)) = acknowledged else { continue };
        let done = entries.iter().any(|entry| matches!(entry.fact, Fact::RunEnded { end: RunEnd::Done, .. }));
        let expired = expires.is_some_and(|expires| expires < end + Duration::from_secs(1));
        if !done && !expired && !evidence.dead.contains(&*id) && !evidence.accounted.contains(&*id) {
            found.push(Finding {
                what: "an acknowledged job is lost",
                subject: id.to_string(),
                detail: format!(
                    "it was acknowledged at {at:?}, and neither ran to its end nor is it dead-lettered"
                ),
            });
        }
    }
    found
}
