//! Attempts are bounded and counted (I11).

use std::time::Duration;

use super::doubled::has_copies;
use super::{Evidence, Finding};
use crate::job::outcome::Outcome;
use crate::testing::world::ledger::{Entry, Fact, RunEnd};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for (id, entries) in evidence.by_job() {
        let mut failures = 0;
        for entry in &entries {
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
        let uncounted = uncounted(evidence, &id, &entries);
        found.extend(uncounted.filter(|_| !has_copies(evidence, &entries, usize::MAX)));
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

/// The time after a release in which a worker that is shutting down has ended. It does not pass while its process is stopped.
const SHUTDOWN: Duration = Duration::from_secs(60);

/// A failed run whose worker put the message back, after which the job runs again under the same number. The failure
/// of a handler that a shutdown has cancelled costs no attempt.
fn uncounted(evidence: &Evidence, id: &str, entries: &[&Entry]) -> Option<Finding> {
    let redriven = entries.iter().any(|entry| matches!(entry.fact, Fact::Redriven { .. }));
    let runs = entries.iter().filter(|_| !redriven).filter_map(|entry| match &entry.fact {
        Fact::RunBegan { run, delivery, attempt, .. } => Some((*entry, *run, *delivery, *attempt)),
        _ => None,
    });
    runs.clone().find_map(|(began, run, delivery, attempt)| {
        let has_failed = entries.iter().any(|entry| {
            matches!(entry.fact, Fact::RunEnded { run: ended, end: RunEnd::Failed, .. } if ended == run)
        });
        let put_back = entries.iter().find(|entry| {
            entry.node == began.node
                && entry.number > began.number
                && matches!(&entry.fact, Fact::Settled { delivery: of, outcome: Outcome::Released(_), .. } if *of == delivery)
        })?;
        if shuts_down(evidence, put_back) {
            return None;
        }
        let again = runs.clone().find(|(entry, _, _, again)| entry.number > put_back.number && *again <= attempt);
        let (again, ..) = again.filter(|_| has_failed)?;
        Some(Finding {
            what: "a failed attempt is not counted",
            subject: id.to_owned(),
            detail: format!("attempt {attempt} failed in {}, and began anew at {:?}", began.node, again.at),
        })
    })
}

/// Returns whether a worker was told to stop before an entry of its, or ends soon after it.
fn shuts_down(evidence: &Evidence, put_back: &Entry) -> bool {
    let is_told = |fact: &Fact| matches!(fact, Fact::Noted(text) if text == "told to stop");
    let mut before = evidence.history[..put_back.number].iter();
    // It may die before it has ended.
    if before.any(|entry| entry.node == put_back.node && is_told(&entry.fact)) {
        return true;
    }
    let mut since = Some(put_back.at);
    for entry in &evidence.history[put_back.number..] {
        if since.is_some_and(|since| entry.at > since + SHUTDOWN) {
            return false;
        }
        match &entry.fact {
            Fact::Incident(_) if entry.node != put_back.node => {}
            Fact::Incident(text) if text.starts_with("worker ended") => return true,
            Fact::Incident(text) if text.starts_with("frozen") => since = None,
            Fact::Incident(text) if text.starts_with("continues") => since = Some(entry.at),
            _ => {}
        }
    }
    false
}
