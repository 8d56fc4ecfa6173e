//! A readable extract of a history.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use jobqueue::storage::Operation;

use super::builder::Finding;
use super::ledger::{Entry, Fact};

/// The maximum number of lines in a trace.
const MAX_LINES: usize = 160;

/// Returns the findings and the entries that concern them.
pub(super) fn trace(findings: &[Finding], history: &[Entry]) -> String {
    let mut text = String::new();
    for finding in findings.iter().take(8) {
        // Writing to a string does not fail.
        let _ = writeln!(text, "{finding}");
    }
    let concerns = |subject: &str| {
        !subject.is_empty() && findings.iter().any(|finding| finding.subject.contains(subject))
    };
    let of_jobs: Vec<&Entry> =
        history.iter().filter(|entry| entry.job.as_ref().is_some_and(|id| concerns(id))).collect();
    let nodes: BTreeSet<&Arc<str>> = of_jobs.iter().map(|entry| &entry.node).collect();
    let first = of_jobs.first().map_or(0, |entry| entry.number);
    let is_kept = |entry: &&Entry| match &entry.job {
        Some(id) => concerns(id),
        None => match &entry.fact {
            Fact::Fault { operation, .. } => {
                entry.number >= first && nodes.contains(&entry.node) && is_shown(*operation)
            }
            Fact::Incident(_) | Fact::Threshold { .. } => entry.number >= first || entry.at.is_zero(),
            fact => matches!(fact, Fact::Noted(_)),
        },
    };
    let kept: Vec<&Entry> = history.iter().filter(is_kept).collect();
    for entry in kept.iter().take(MAX_LINES) {
        let _ = writeln!(text, "{:>5} {:>12?} {:<10} {}", entry.number, entry.at, entry.node, line(entry));
    }
    if kept.len() > MAX_LINES {
        let _ = writeln!(text, "… and {} more", kept.len() - MAX_LINES);
    }
    text
}

/// Returns whether failures of this operation are worth showing. Polling and background work fail often, and
/// are hardly ever the cause.
fn is_shown(operation: Operation) -> bool {
    operation.is_change()
        && !matches!(operation, Operation::Get | Operation::AcquireLease | Operation::RenewLease)
        || matches!(operation, Operation::GetBlob | Operation::ListBlobs)
}

fn line(entry: &Entry) -> String {
    let id = entry.job.as_deref().unwrap_or_default();
    match &entry.fact {
        Fact::SendBegan { queue } => format!("sends {id} to {queue}"),
        Fact::Sent { verdict, .. } => format!("sent {id}: {verdict:?}"),
        Fact::PutBegan { queue } => format!("puts {id} into {queue}"),
        Fact::Put { queue, verdict, .. } => format!("put {id} into {queue}: {verdict:?}"),
        Fact::Received { queue, delivery, .. } => format!("got {id} from {queue}, delivery {delivery}"),
        Fact::Deleted { queue } => format!("deleted {id} from {queue}"),
        Fact::CallFailed { operation, how, .. } => format!("  ! {operation} of {id} {how}"),
        Fact::CallRefused { operation } => format!("  ! {operation} of {id} was refused"),
        Fact::Changed { operation, .. } => format!("{operation} of {id}"),
        Fact::RunBegan { run, delivery, attempt, .. } => {
            format!("run {run} of {id} begins, attempt {attempt}, delivery {delivery}")
        }
        Fact::RunEnded { run, end } => format!("run {run} of {id}: {end:?}"),
        Fact::Settled { delivery, outcome, .. } => format!("settled {id}, delivery {delivery}: {outcome:?}"),
        Fact::Effect { name, .. } => format!("effect {name} of {id}"),
        Fact::Redriven => format!("{id} redriven"),
        Fact::TakenAway { why } => format!("{id} {why}"),
        Fact::Kept => format!("{id} is kept"),
        Fact::Fault { operation, subject, fault } => format!("  ! {operation} {subject}: {fault:?}"),
        Fact::Incident(disturbance) => format!("  ! {disturbance}"),
        Fact::Threshold { queue, attempts } => format!("sets the attempts of {queue} to {attempts}"),
        Fact::Noted(text) => format!("  {text}"),
    }
}
