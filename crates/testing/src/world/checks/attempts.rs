//! Judges that attempts are bounded and counted.

use std::collections::BTreeSet;
use std::time::{Duration, SystemTime};

use jobqueue::{Outcome, Reason};

use super::evidence::{Job, JobRun, is_of_dead_letters};
use super::{Evidence, Finding};
use crate::world::disturbance::Disturbance;
use crate::world::ledger::{Entry, Fact, RunEnd};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    let changed = changed_queues(evidence);
    for job in evidence.jobs() {
        // A threshold that was lowered may end a job before its last attempt.
        if !job.queues().any(|queue| changed.contains(queue)) {
            found.extend(too_few(&job));
        }
        let mut failures = 0;
        for entry in &job.entries {
            match &entry.fact {
                Fact::RunBegan { attempt, max_attempts, .. } if attempt > max_attempts => {
                    found.push(job.finding(
                        "a job has too many attempts",
                        format!("attempt {attempt} of {max_attempts} began at {:?}", entry.at),
                    ));
                }
                Fact::Settled { outcome: Outcome::Retried(_), .. } => failures += 1,
                Fact::Settled { delivery, outcome: Outcome::DeadLettered(reason), .. }
                    if *reason == Reason::MAX_DELIVERIES && *delivery <= MIN_DELIVERIES =>
                {
                    found.push(job.finding(
                        "a job has too few deliveries",
                        format!("it was dead-lettered for them at {:?}, in delivery {delivery}", entry.at),
                    ));
                }
                // A redriven job has all its attempts again.
                Fact::Settled { outcome: Outcome::DeadLettered(_), .. } => failures = 0,
                _ => {}
            }
        }
        found.extend(job.by_message().iter().find_map(|runs| uncounted(evidence, &job, runs)));
        if failures > 1_000 {
            found.push(job.finding("a job fails without end", format!("{failures} failures were reported")));
        }
    }
    found
}

/// Finds a job that was dead-lettered for its attempts before its last attempt.
fn too_few(job: &Job<'_>) -> Option<Finding> {
    // Of any message of the job since the job was last put into its queue, unless it has copies.
    let mut had_last_attempt = false;
    job.entries.iter().find_map(|entry| {
        match &entry.fact {
            Fact::RunBegan { attempt, max_attempts, .. } => had_last_attempt |= attempt == max_attempts,
            // A redriven job has all its attempts again.
            Fact::PutBegan { queue } if !is_of_dead_letters(queue) && !job.has_copies(entry.number + 1) => {
                had_last_attempt = false;
            }
            Fact::Settled { inserted, outcome: Outcome::DeadLettered(reason), .. }
                if *reason == Reason::ATTEMPTS_EXHAUSTED
                    && !had_last_attempt
                    && !had_last_attempt_of(job, *inserted) =>
            {
                return Some(job.finding(
                    "a job has too few attempts",
                    format!("it was dead-lettered for its attempts at {:?}, before the last", entry.at),
                ));
            }
            _ => {}
        }
        None
    })
}

/// Returns whether a message has had its last attempt. A process that was stopped may report the dead letter
/// of a message after the job was put back.
fn had_last_attempt_of(job: &Job<'_>, inserted: Option<SystemTime>) -> bool {
    job.entries.iter().any(|entry| {
        matches!(&entry.fact, Fact::RunBegan { inserted: of, attempt, max_attempts, .. }
            if Some(*of) == inserted && attempt == max_attempts)
    })
}

/// Returns the queues whose number of attempts was changed.
fn changed_queues(evidence: &Evidence) -> BTreeSet<&str> {
    let changed = evidence.history.iter().filter_map(|entry| match &entry.fact {
        Fact::Threshold { queue, .. } => Some(&**queue),
        _ => None,
    });
    changed.collect()
}

/// The minimum number of deliveries after which a job is dead-lettered for them, which applies to a queue
/// whose threshold is 1. The storage also counts deliveries that do not count for the job.
const MIN_DELIVERIES: u32 = 24;

/// The maximum time from a release to the end of a worker that is shutting down. The time during which its
/// process is stopped does not count.
const MAX_SHUTDOWN_TIME: Duration = Duration::from_secs(60);

/// Returns a failed run after which the worker put the message back and a later delivery has the same
/// attempt. A handler that failed because a shutdown cancelled it costs no attempt.
fn uncounted(evidence: &Evidence, job: &Job<'_>, runs: &[JobRun<'_>]) -> Option<Finding> {
    // A delivery is settled after its run. An earlier settlement belongs to another message that was inserted
    // at the same moment.
    let failed = runs.iter().filter_map(|run| match run.end {
        Some((RunEnd::Failed, ended)) => Some((run, ended)),
        _ => None,
    });
    failed.clone().find_map(|(run, ended)| {
        let put_back = job.entries.iter().find(|entry| {
            entry.node == run.began.node
                && entry.number > ended.number
                && matches!(&entry.fact, Fact::Settled { inserted, delivery, outcome: Outcome::Released(_), .. } if (*inserted, *delivery) == (Some(run.message), run.delivery))
        })?;
        if shuts_down(evidence, put_back) {
            return None;
        }
        let again =
            runs.iter().find(|again| again.began.number > put_back.number && again.attempt <= run.attempt)?;
        Some(job.finding("a failed attempt is not counted", format!(
                "attempt {} failed in {}, and began anew at {:?}",
                run.attempt, run.began.node, again.began.at
            )))
    })
}

/// Returns whether a worker was asked to stop before an entry of its process, or ended soon after the entry.
fn shuts_down(evidence: &Evidence, put_back: &Entry) -> bool {
    let is_asked = |fact: &Fact| matches!(fact, Fact::Incident(Disturbance::StopRequested));
    let mut before = evidence.history[..put_back.number].iter();
    // The process may die before the worker has ended.
    if before.any(|entry| entry.node == put_back.node && is_asked(&entry.fact)) {
        return true;
    }
    let mut since = Some(put_back.at);
    for entry in &evidence.history[put_back.number..] {
        if since.is_some_and(|since| entry.at > since + MAX_SHUTDOWN_TIME) {
            return false;
        }
        match &entry.fact {
            Fact::Incident(_) if entry.node != put_back.node => {}
            Fact::Incident(Disturbance::WorkerEnded { .. }) => return true,
            Fact::Incident(Disturbance::Frozen { .. }) => since = None,
            Fact::Incident(Disturbance::Continues) => since = Some(entry.at),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::world::ledger::Verdict;

    /// Returns the history of job `j` in process `w`: the given facts, one second apart.
    fn history(facts: Vec<Fact>) -> Evidence {
        let entry = |(number, fact)| {
            let at = Duration::from_secs(number as u64);
            Entry { number, at, node: "w".into(), job: Some("j".into()), fact }
        };
        let history = facts.into_iter().enumerate().map(entry).collect();
        Evidence { history, ..Evidence::default() }
    }

    fn began(run: u64, attempt: u32) -> Fact {
        Fact::RunBegan { run, inserted: SystemTime::UNIX_EPOCH, delivery: 1, attempt, max_attempts: 3 }
    }

    fn failed_and_released() -> [Fact; 2] {
        let outcome = Outcome::Released(Duration::ZERO);
        [
            Fact::RunEnded { run: 1, end: RunEnd::Failed },
            Fact::Settled { inserted: Some(SystemTime::UNIX_EPOCH), delivery: 1, outcome },
        ]
    }

    #[test]
    fn attempt_beyond_the_maximum_is_found() {
        assert!(check(&history(vec![began(1, 3)])).is_empty());
        let found = check(&history(vec![began(1, 4)]));
        assert_eq!(found[0].what, "a job has too many attempts");
    }

    #[test]
    fn dead_letter_before_the_last_attempt_is_found() {
        let facts = |attempts: u32| {
            let outcome = Outcome::DeadLettered(Reason::ATTEMPTS_EXHAUSTED);
            let inserted = Some(SystemTime::UNIX_EPOCH);
            let runs = (1..=attempts).map(|attempt| began(attempt.into(), attempt));
            runs.chain([Fact::Settled { inserted, delivery: 1, outcome }]).collect::<Vec<_>>()
        };
        assert!(check(&history(facts(3))).is_empty());
        assert_eq!(check(&history(facts(2)))[0].what, "a job has too few attempts");
        let changed = |queue: &str| {
            let mut changed = facts(2);
            changed.insert(0, Fact::SendBegan { queue: "orders".into() });
            changed.insert(1, Fact::Threshold { queue: queue.into(), attempts: 2 });
            check(&history(changed))
        };
        assert!(changed("orders").is_empty());
        assert_eq!(changed("others")[0].what, "a job has too few attempts");
    }

    #[test]
    fn redriven_job_that_dies_before_its_last_attempt_is_found() {
        let later = SystemTime::UNIX_EPOCH + Duration::from_secs(60);
        let again =
            |attempt| Fact::RunBegan { run: 2, inserted: later, delivery: 1, attempt, max_attempts: 3 };
        let died = |inserted| {
            let outcome = Outcome::DeadLettered(Reason::ATTEMPTS_EXHAUSTED);
            Fact::Settled { inserted: Some(inserted), delivery: 1, outcome }
        };
        let queue = || Arc::<str>::from("orders");
        let put = || {
            let stored = Fact::Put { queue: queue(), verdict: Verdict::Acknowledged, expires: None };
            [Fact::PutBegan { queue: queue() }, stored]
        };
        let with = |last: Vec<Fact>| {
            let redriven = [began(1, 3), Fact::Deleted { queue: queue() }, Fact::Redriven];
            check(&history(put().into_iter().chain(redriven).chain(put()).chain(last).collect()))
        };
        assert!(with(vec![again(3), died(later)]).is_empty());
        assert!(with(vec![died(SystemTime::UNIX_EPOCH)]).is_empty(), "the first letter is reported late");
        assert_eq!(with(vec![again(1), died(later)])[0].what, "a job has too few attempts");
    }

    #[test]
    fn dead_letter_before_the_last_delivery_is_found() {
        let died = |delivery| {
            let outcome = Outcome::DeadLettered(Reason::MAX_DELIVERIES);
            history(vec![Fact::Settled { inserted: Some(SystemTime::UNIX_EPOCH), delivery, outcome }])
        };
        assert!(check(&died(25)).is_empty());
        assert_eq!(check(&died(24))[0].what, "a job has too few deliveries");
    }

    #[test]
    fn failure_that_is_not_counted_is_found() {
        let facts = |again| {
            let [failed, released] = failed_and_released();
            vec![began(1, 1), failed, released, began(2, again)]
        };
        assert!(check(&history(facts(2))).is_empty());
        let found = check(&history(facts(1)));
        assert_eq!(found[0].what, "a failed attempt is not counted");
        // A handler that failed because a shutdown cancelled it costs no attempt.
        let mut cancelled = facts(1);
        cancelled.insert(0, Fact::Incident(Disturbance::StopRequested));
        assert!(check(&history(cancelled)).is_empty());
    }
}
