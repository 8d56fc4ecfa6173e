//! A schedule skips no slot.

use std::collections::BTreeSet;

use jobqueue::testing::world::{Fact, Finding};

use super::{Evidence, finding};

const PREFIX: &str = "schedule/ticks/";
const EVERY_SECONDS: i64 = 20;

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let slots: BTreeSet<i64> = evidence
        .history
        .iter()
        .filter_map(|entry| match &entry.fact {
            Fact::RunBegan { id, .. } => id.strip_prefix(PREFIX),
            _ => None,
        })
        .filter_map(|slot| slot.parse::<jiff::Timestamp>().ok().map(|slot| slot.as_second()))
        .collect();
    let slots: Vec<i64> = slots.into_iter().collect();
    let gaps = slots.windows(2).filter(|pair| pair[1] - pair[0] != EVERY_SECONDS);
    gaps.map(|pair| finding("a slot of a schedule is left out", PREFIX, format!("{pair:?}"))).collect()
}
