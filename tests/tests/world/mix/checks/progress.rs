//! Checkpoints grow; a step or an effect returns the same result again.

use std::collections::BTreeMap;

use jobqueue::testing::world::{Fact, Finding, Verdict};

use super::{Evidence, finding};
use crate::mix::diary::Note;
use crate::mix::features::Feature;

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut saved: BTreeMap<String, u32> = BTreeMap::new();
    let mut steps: BTreeMap<String, u64> = BTreeMap::new();
    let mut once: BTreeMap<String, u64> = BTreeMap::new();
    for (number, note) in evidence.diary.notes() {
        match note {
            Note::Saved { id, value } if is_single(evidence, &id) => {
                let newest = saved.entry(id).or_default();
                *newest = value.max(*newest);
            }
            Note::Resumed { id, value } if is_single(evidence, &id) => {
                let newest = saved.get(&id).copied().unwrap_or_default();
                if value < newest {
                    let detail =
                        format!("checkpoint {newest} was acknowledged, and {value} found (entry {number})");
                    found.push(finding("a checkpoint is lost", &id, detail));
                }
            }
            Note::Step { id, value } if is_single(evidence, &id) && is_quiet(evidence) => {
                let first = *steps.entry(id.clone()).or_insert(value);
                if first != value {
                    let detail = format!("it returned {first}, and later {value} (entry {number})");
                    found.push(finding("a step ran twice", &id, detail));
                }
            }
            Note::Once { id, value } => {
                let first = *once.entry(id.clone()).or_insert(value);
                if first != value {
                    let detail = format!("it returned {first}, and later {value} (entry {number})");
                    found.push(finding("an effect that happens once returned two results", &id, detail));
                }
            }
            _ => {}
        }
    }
    found
}

/// Returns whether nothing could prevent a result from being saved.
fn is_quiet(evidence: &Evidence) -> bool {
    let plan = &evidence.diary.plan;
    let trouble = [Feature::Faults, Feature::Crashes, Feature::Freezes, Feature::Outages, Feature::Restarts];
    !trouble.into_iter().any(|feature| plan.has(feature))
}

/// Returns whether there is one message of the job: copies have checkpoints of their own.
fn is_single(evidence: &Evidence, id: &str) -> bool {
    let mut sends = 0;
    let mut certain = true;
    for entry in &evidence.history {
        match &entry.fact {
            Fact::SendBegan { id: sent, .. } if **sent == *id => sends += 1,
            Fact::Sent { id: sent, verdict, .. } if **sent == *id => {
                certain &= *verdict == Verdict::Acknowledged
            }
            Fact::Fault { operation, .. } => {
                certain &= !operation.as_str().starts_with("put message");
            }
            _ => {}
        }
    }
    sends == 1 && certain
}
