//! The summary of a segment: it tells what the segment can hold, so that a search need not read it.
//!
//! ```text
//! summary:  magic, length of the head (u32), head (JSON), filter of the ids
//! ```

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::bytes::Reader;
use super::chunk::OUTCOMES;
use super::filter::{Filter, may_contain};
use super::query::Query;
use super::segment::chunks;

/// The beginning of a summary.
const MAGIC: [u8; 4] = *b"jqs1";
/// The most groups in a summary.
const MAX_GROUPS: usize = 1_000;

#[derive(Debug, Default, Serialize, Deserialize)]
struct Head {
    jobs: u64,
    /// Empty if there are too many: the segment may hold any.
    groups: Vec<Group>,
}

/// The jobs of a segment that are alike.
#[derive(Debug, Serialize, Deserialize)]
struct Group {
    queue: String,
    kind: String,
    outcome: String,
    jobs: u64,
}

/// Returns the summary of a segment.
pub(super) fn summarise(segment: &[u8]) -> Vec<u8> {
    let (mut hashes, mut groups) = (Vec::new(), BTreeMap::<_, u64>::new());
    for mut chunk in chunks(segment) {
        // By origin and outcome.
        let mut counts = Vec::<[u64; OUTCOMES.len()]>::new();
        while let Some(entry) = chunk.next() {
            hashes.push(entry.id.hash());
            counts.resize(chunk.origins.len(), Default::default());
            counts[entry.origin][entry.outcome] += 1;
        }
        for (origin, counts) in chunk.origins.iter().zip(counts) {
            for (outcome, jobs) in OUTCOMES.iter().zip(counts).filter(|(_, jobs)| *jobs > 0) {
                *groups.entry((origin.queue, origin.kind, *outcome)).or_default() += jobs;
            }
        }
    }
    let mut filter = Filter::with_room_for(hashes.len());
    hashes.iter().for_each(|hash| filter.insert(*hash));
    let group = |((queue, kind, outcome), jobs): ((&str, &str, &str), u64)| {
        let [queue, kind, outcome] = [queue, kind, outcome].map(str::to_owned);
        Group { queue, kind, outcome, jobs }
    };
    let groups = if groups.len() > MAX_GROUPS { BTreeMap::new() } else { groups };
    let head = Head { jobs: hashes.len() as u64, groups: groups.into_iter().map(group).collect() };
    let head = serde_json::to_vec(&head).unwrap_or_default();
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&head);
    bytes.extend_from_slice(filter.bytes());
    bytes
}

/// Returns whether the segment of this summary may hold a job that the query selects; true if the summary cannot be read.
pub(super) fn may_hold(summary: &[u8], query: &Query) -> bool {
    read(summary).is_none_or(|(head, filter)| {
        let is_kind = |group: &Group| query.is_group(&group.queue, &group.kind, &group.outcome);
        let may_be_kind = head.groups.is_empty() || head.groups.iter().any(is_kind);
        may_be_kind && query.id().is_none_or(|id| may_contain(filter, id.hash()))
    })
}

fn read(summary: &[u8]) -> Option<(Head, &[u8])> {
    let mut rest = Reader(summary);
    if rest.array()? != MAGIC {
        return None;
    }
    let length = u32::from_le_bytes(rest.array()?);
    let head = serde_json::from_slice(rest.bytes(length as usize)?).ok()?;
    Some((head, rest.0))
}
