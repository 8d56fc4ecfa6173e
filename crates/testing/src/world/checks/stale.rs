//! Judges that a process that has lost its lease settles nothing, and runs no handler at the same time as its
//! successor.

use std::time::Duration;

use jobqueue::Outcome;

use super::evidence::{Job, JobRun};
use super::{Evidence, Finding};
use crate::world::ledger::{Entry, Fact};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for job in evidence.jobs() {
        for runs in job.by_message() {
            found.extend(
                runs.iter().enumerate().find_map(|(at, run)| began_after_successor(&job, run, &runs[..at])),
            );
        }
        found.extend(
            job.runs.iter().enumerate().find_map(|(at, run)| overlapping(&job, run, &job.runs[..at])),
        );
        found.extend(job.entries.iter().find_map(|entry| settled_after_successor(&job, entry)));
    }
    found
}

/// Finds a run of an older delivery that begins after a run of a newer delivery of the same message.
fn began_after_successor(job: &Job<'_>, run: &JobRun<'_>, before: &[JobRun<'_>]) -> Option<Finding> {
    let newer = before.iter().find(|earlier| earlier.delivery > run.delivery)?;
    Some(job.finding(
        "a handler begins although a later delivery has begun",
        format!(
            "delivery {} began in {} at {:?}, after {}",
            run.delivery, run.began.node, run.began.at, newer.delivery
        ),
    ))
}

/// Finds a run that begins during an earlier run whose process cannot have lost its lease.
fn overlapping(job: &Job<'_>, run: &JobRun<'_>, before: &[JobRun<'_>]) -> Option<Finding> {
    let began = run.began.number;
    let overlaps = |earlier: &&JobRun<'_>| {
        let copies = earlier.message != run.message && job.has_copies(began);
        !earlier.has_ended(began) && !copies && !job.may_lose_lease(earlier, began)
    };
    let earlier = before.iter().find(overlaps).filter(|_| !job.is_about_to_expire(run.began))?;
    Some(job.finding(
        "two handlers of a job run at once",
        format!(
            "a run began in {} at {:?}, while run {} continued in {}",
            run.began.node, run.began.at, earlier.number, earlier.began.node
        ),
    ))
}

/// The maximum time that an answer takes if nothing fails.
const MAX_ANSWER_TIME: Duration = Duration::from_secs(2);

/// Finds an outcome that only the owner of a message may report, reported after a later delivery of the
/// message has begun.
fn settled_after_successor(job: &Job<'_>, entry: &Entry) -> Option<Finding> {
    let Fact::Settled { inserted: Some(inserted), delivery, outcome, .. } = &entry.fact else { return None };
    let own = job.run_of(entry, *inserted, *delivery)?;
    let newer = job.runs.iter().find(|run| {
        run.message == own.message && run.began.number < entry.number && run.delivery > *delivery
    })?;
    // A process that was stopped may report, after it resumes, an outcome from before. But if it had deleted
    // the message, no later delivery could have begun.
    let stopped = || job.was_stopped(&entry.node, own.began.number, entry.number);
    // The answer to a release takes a moment. During it, a message released without a delay can be delivered
    // again.
    let just_began = || newer.began.at + MAX_ANSWER_TIME > entry.at;
    // A letter counts as stored although the deletion of its message got no answer.
    let in_doubt = || job.may_lose_lease(&own, entry.number);
    let is_of_owner = match outcome {
        Outcome::Completed => true,
        Outcome::Retried(_) | Outcome::Released(_) => !stopped() && !just_began(),
        Outcome::DeadLettered(_) => !in_doubt(),
        _ => false,
    };
    is_of_owner.then(|| {
        job.finding(
            "a worker settles a message that another one has",
            format!(
                "delivery {delivery} was settled as {outcome:?} at {:?}, after delivery {} had begun",
                entry.at, newer.delivery
            ),
        )
    })
}
