//! Each further run of a job has a cause (I2, I5, I6).

use std::sync::Arc;
use std::time::Duration;

use super::{Evidence, Finding};
use crate::job::outcome::Outcome;
use crate::storage::Operation;
use crate::testing::world::ledger::{Entry, Fact, RunEnd, Verdict};

/// The maximum time between leasing a message and starting its handler, in a process that was frozen in between.
const LEASED: Duration = Duration::from_secs(120);
/// The time before a message's expiry at which its lease may end.
const LAST_MOMENT: Duration = Duration::from_secs(3);

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (id, entries) in evidence.by_job() {
        let runs: Vec<Run<'_>> = runs(&entries);
        for pair in runs.windows(2) {
            if let [first, second] = pair
                && first.end == Some(RunEnd::Done)
                && !has_cause(evidence, &entries, first, second)
            {
                found.push(Finding {
                    what: "a job ran twice without a cause",
                    subject: id.to_string(),
                    detail: format!(
                        "it was done at {:?} in {}, and ran again at {:?} in {}",
                        first.ended, first.node, second.began.at, second.began.node
                    ),
                });
                break;
            }
        }
    }
    found
}

struct Run<'a> {
    began: &'a Entry,
    node: &'a Arc<str>,
    delivery: u32,
    end: Option<RunEnd>,
    ended: Option<Duration>,
}

fn runs<'a>(entries: &[&'a Entry]) -> Vec<Run<'a>> {
    let mut runs = Vec::new();
    for entry in entries {
        let Fact::RunBegan { run, delivery, .. } = &entry.fact else { continue };
        let end = entries.iter().find_map(|other| match &other.fact {
            Fact::RunEnded { run: ended, end, .. } if ended == run => Some((*end, other.at)),
            _ => None,
        });
        let (end, ended) = end.unzip();
        runs.push(Run { began: entry, node: &entry.node, delivery: *delivery, end, ended });
    }
    runs
}

/// Returns whether an event explains that a job ran again after it was done.
fn has_cause(evidence: &Evidence, entries: &[&Entry], first: &Run<'_>, second: &Run<'_>) -> bool {
    // A fault occurred in its process, or in a call of its process, before the second run began.
    let broke = evidence.history.iter().any(|entry| {
        entry.node == *first.node
            && entry.at + LEASED > first.began.at
            && entry.number < second.began.number
            && matches!(entry.fact, Fact::Fault { .. } | Fact::Incident(_))
    });
    // The two runs overlap because the first had lost its lease; a fault occurred before that too.
    let settled = entries.iter().any(|entry| {
        entry.node == *first.node
            && matches!(&entry.fact, Fact::Settled { delivery, outcome: Outcome::Completed, .. } if *delivery == first.delivery)
            && entry.number < second.began.number
    });
    let copies = has_copies(evidence, entries, second.began.number);
    let redriven = entries
        .iter()
        .any(|entry| matches!(entry.fact, Fact::Redriven { .. }) && entry.number < second.began.number);
    // A frozen process continues with a message that it leased before the first run began.
    let is_late = second.delivery < first.delivery;
    copies || redriven || is_late || is_about_to_expire(entries, second) || (broke && !settled)
}

/// Returns whether the run began shortly before its message expired: a lease cannot be renewed up to the last moment.
fn is_about_to_expire(entries: &[&Entry], run: &Run<'_>) -> bool {
    entries.iter().any(|entry| match &entry.fact {
        Fact::Sent { expires: Some(expires), .. } => run.began.at + LAST_MOMENT > *expires,
        _ => false,
    })
}

/// Returns whether two messages of the job may exist: it was sent twice, or the answer to a put was lost.
pub(super) fn has_copies(evidence: &Evidence, entries: &[&Entry], before: usize) -> bool {
    let sends: Vec<&&Entry> =
        entries.iter().filter(|entry| matches!(entry.fact, Fact::SendBegan { .. })).collect();
    let [send] = sends.as_slice() else { return true };
    let told = entries.iter().find(|entry| matches!(entry.fact, Fact::Sent { .. }));
    if told.is_none_or(|told| !matches!(told.fact, Fact::Sent { verdict: Verdict::Acknowledged, .. })) {
        return true;
    }
    // Another process was told of the job, which has taken over the send of one that died.
    if told.is_some_and(|told| told.node != send.node) {
        return true;
    }
    let until = told.map_or(before, |told| told.number);
    // The put of its sender failed, or its sender died.
    evidence.history.iter().any(|entry| {
        let is_put = |operation| matches!(operation, Operation::Put | Operation::PutAll);
        let failed = match &entry.fact {
            Fact::Fault { operation, .. } => is_put(*operation),
            Fact::Incident(_) => true,
            _ => false,
        };
        failed && entry.node == send.node && (send.number..until).contains(&entry.number)
    })
}
