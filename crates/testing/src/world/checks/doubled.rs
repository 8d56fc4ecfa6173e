//! Judges that a job that is done neither runs again nor dies without a cause, and that a dead job does not
//! run.

use std::time::SystemTime;

use jobqueue::Outcome;

use super::evidence::{Job, JobRun, is_of_dead_letters};
use super::{Evidence, Finding};
use crate::world::ledger::{Entry, Fact, Verdict};

pub(super) fn check(evidence: &Evidence) -> Vec<Finding> {
    let mut found = Vec::new();
    for job in evidence.jobs() {
        let pairs = job.runs.iter().zip(job.runs.iter().skip(1));
        let ran_again = pairs.clone().find(|(first, second)| {
            first.is_done() && first.has_ended(second.began.number) && !has_cause(&job, first, second)
        });
        found.extend(ran_again.map(|(first, second)| {
            job.finding(
                "a job ran twice without a cause",
                format!(
                    "it was done in {} (run {}), and ran again at {:?} in {}",
                    first.began.node, first.number, second.began.at, second.began.node
                ),
            )
        }));
        found.extend(dead_lettered_when_done(&job));
        found.extend(runs_after_its_letter(&job));
        if evidence.dead.contains(&**job.id) {
            found.extend(keeps_its_letter(&job));
        }
    }
    found
}

/// Returns whether an event of this job, or of the process that had its lease, explains why the job ran again
/// after it was done.
pub(super) fn has_cause(job: &Job<'_>, first: &JobRun<'_>, second: &JobRun<'_>) -> bool {
    let copies = first.message != second.message && job.has_copies(second.began.number);
    // Ignores runs of other messages in between: the lease of this message belongs to the process of its last
    // run.
    let same = job
        .runs
        .iter()
        .rev()
        .find(|run| run.began.number < second.began.number && run.message == second.message);
    let lost = same.is_some_and(|run| {
        job.may_lose_lease(run, second.began.number) && !is_remembered(job, run, second.began)
    });
    copies || lost || job.is_about_to_expire(second.began)
}

/// Finds a job that was done and is dead-lettered later.
fn dead_lettered_when_done(job: &Job<'_>) -> Option<Finding> {
    job.entries.iter().find_map(|entry| {
        let Fact::Settled { inserted, outcome: Outcome::DeadLettered(reason), .. } = &entry.fact else {
            return None;
        };
        let is_before = |run: &&JobRun<'_>| run.is_done() && run.has_ended(entry.number);
        let done = job.runs.iter().find(is_before)?;
        let is_explained = if *inserted == Some(done.message) {
            job.may_lose_lease(done, entry.number) && !is_remembered(job, done, entry)
        } else {
            job.has_copies(entry.number)
        };
        (!is_explained && !job.is_about_to_expire(entry)).then(|| {
            job.finding(
                "a job that was done is dead-lettered",
                format!(
                    "run {} was done, and {} dead-lettered it as {reason} at {:?}",
                    done.number, entry.node, entry.at
                ),
            )
        })
    })
}

/// Returns whether the process of an entry has already reported the message of a run as done. The process
/// remembers that, whether or not the deletion succeeded.
fn is_remembered(job: &Job<'_>, done: &JobRun<'_>, entry: &Entry) -> bool {
    job.entries.iter().any(|earlier| {
        earlier.number < entry.number
            && earlier.node == entry.node
            && matches!(&earlier.fact, Fact::Settled {
                inserted: Some(inserted),
                outcome: Outcome::Completed | Outcome::CompletedUncertain,
                ..
            } if *inserted == done.message)
    })
}

/// Finds a message that runs again after its dead letter was stored. The end of a job is recorded in its
/// message before the letter is stored, so a crash or a lost answer explains the run only if it came before
/// the letter.
fn runs_after_its_letter(job: &Job<'_>) -> Option<Finding> {
    let is_stored = |fact: &Fact| matches!(fact, Fact::Put { queue, verdict: Verdict::Acknowledged, .. } if is_of_dead_letters(queue));
    // If the job has two messages, the history does not show which of them the process has.
    let mut letters =
        job.entries.iter().filter(|entry| is_stored(&entry.fact) && !job.has_copies(entry.number));
    letters.find_map(|letter| {
        let (received, message) = received_for(job, letter)?;
        let again = job.runs.iter().find(|run| run.message == message && run.began.number > letter.number)?;
        let is_in_doubt = job.may_fail_between(&letter.node, received, letter.number);
        (!is_in_doubt).then(|| {
            job.finding(
                "a job runs beside its dead letter",
                format!(
                    "{} stored the letter at {:?}, and run {} of the same message began at {:?}",
                    letter.node, letter.at, again.number, again.began.at
                ),
            )
        })
    })
}

/// Returns the message for which a process stored a dead letter, that is, the last message that it received,
/// and the number of that entry.
fn received_for(job: &Job<'_>, letter: &Entry) -> Option<(usize, SystemTime)> {
    let mut before = job.entries.iter().rev().filter(|entry| entry.number < letter.number);
    before.find_map(|entry| match &entry.fact {
        Fact::Received { queue, inserted, .. } if entry.node == letter.node && !is_of_dead_letters(queue) => {
            Some((entry.number, *inserted))
        }
        _ => None,
    })
}

/// Finds a job that was done after it was dead-lettered, and whose letter is left. The run that was done may
/// have begun before, beside the delivery that was dead-lettered.
fn keeps_its_letter(job: &Job<'_>) -> Option<Finding> {
    let is_letter =
        |entry: &&&Entry| matches!(&entry.fact, Fact::PutBegan { queue, .. } if is_of_dead_letters(queue));
    let letter = job.entries.iter().rev().find(is_letter)?;
    let last = job.runs.iter().rev().find(|run| run.is_done() && !run.has_ended(letter.number))?;
    let may_be_left = if last.began.number > letter.number {
        job.may_fail_between(&letter.node, letter.number, last.began.number)
    } else {
        let received = received_for(job, letter).map_or(letter.number, |(received, _)| received);
        let ended = last.end.map_or(letter.number, |(_, end)| end.number);
        job.may_fail_between(&letter.node, received, ended) || job.may_lose_lease(last, ended)
    };
    // The pass that put the job back may not have deleted the letter.
    let is_later_pass = |entry: &&Entry| matches!(entry.fact, Fact::Redriven) && entry.number > letter.number;
    let mut redriven = job.entries.iter().copied().filter(is_later_pass);
    let is_put_back = redriven.any(|pass| job.may_fail_between(&pass.node, pass.number, usize::MAX));
    (!may_be_left && !is_put_back && !job.has_copies(last.began.number)).then(|| {
        job.finding(
            "a job is done, and its dead letter is left",
            format!("{} wrote the letter at {:?}, and run {} was done", letter.node, letter.at, last.number),
        )
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use jobqueue::Reason;
    use jobqueue::storage::Operation;

    use super::*;
    use crate::world::disturbance::Disturbance;
    use crate::world::ledger::RunEnd;

    fn evidence(facts: Vec<(&str, Fact)>) -> Evidence {
        let entry = |(number, (node, fact)): (usize, (&str, _))| Entry {
            number,
            at: Duration::ZERO,
            node: node.into(),
            job: Some("j".into()),
            fact,
        };
        let history = facts.into_iter().enumerate().map(entry).collect();
        Evidence { history, ..Evidence::default() }
    }

    fn began(run: u64) -> Fact {
        Fact::RunBegan { run, inserted: SystemTime::UNIX_EPOCH, delivery: 2, attempt: 2, max_attempts: 3 }
    }

    fn failed(operation: Operation) -> Fact {
        Fact::CallFailed { operation, message: "m".into(), asked: 0, how: "failed" }
    }

    fn killed() -> Fact {
        Fact::Incident(Disturbance::Killed)
    }

    /// Returns the facts of a job that is done in process `w`.
    fn done() -> [(&'static str, Fact); 2] {
        [("w", began(1)), ("w", Fact::RunEnded { run: 1, end: RunEnd::Done })]
    }

    #[test]
    fn dead_letter_of_a_job_that_is_done_is_found() {
        let letter = ("w", Fact::PutBegan { queue: "orders-poison".into() });
        let mut evidence = evidence([letter].into_iter().chain(done()).collect());
        assert!(check(&evidence).is_empty());
        evidence.dead.insert("j".to_owned());
        assert_eq!(check(&evidence)[0].what, "a job is done, and its dead letter is left");
    }

    #[test]
    fn dead_letter_beside_a_run_that_is_done_later_is_found() {
        let letter = |node| (node, Fact::PutBegan { queue: "orders-poison".into() });
        let with = |disturbance: Option<Fact>| {
            let [began, ended] = done();
            let disturbed = disturbance.map(|fact| ("w", fact));
            let facts = [began].into_iter().chain(disturbed).chain([letter("another"), ended]);
            let mut evidence = evidence(facts.collect());
            evidence.dead.insert("j".to_owned());
            check(&evidence)
        };
        assert!(with(Some(killed())).is_empty());
        assert_eq!(with(None)[0].what, "a job is done, and its dead letter is left");
    }

    fn settled(outcome: Outcome) -> Fact {
        Fact::Settled { inserted: Some(SystemTime::UNIX_EPOCH), delivery: 2, outcome }
    }

    /// Returns the findings about a job that is done in process `w` and whose deletion got no answer,
    /// followed by `fact` in process `node`.
    fn after_a_lost_deletion(node: &'static str, fact: Fact) -> Vec<Finding> {
        let mut facts: Vec<_> = done().into();
        facts.push(("w", failed(Operation::Delete)));
        facts.push(("w", settled(Outcome::CompletedUncertain)));
        facts.push((node, fact));
        check(&evidence(facts))
    }

    #[test]
    fn death_of_a_job_that_its_process_remembers_as_done_is_found() {
        let died = || settled(Outcome::DeadLettered(Reason::MAX_DELIVERIES));
        assert!(after_a_lost_deletion("another", died()).is_empty());
        assert_eq!(after_a_lost_deletion("w", died())[0].what, "a job that was done is dead-lettered");
    }

    #[test]
    fn run_of_a_job_that_its_process_remembers_as_done_is_found() {
        assert!(after_a_lost_deletion("another", began(2)).is_empty());
        assert_eq!(after_a_lost_deletion("w", began(2))[0].what, "a job ran twice without a cause");
    }

    #[test]
    fn run_after_a_failure_that_a_later_change_ended_is_found() {
        let with = |changes: [Fact; 2]| {
            let [began_first, ended] = done();
            let changes = changes.map(|fact| ("w", fact));
            let facts = [began_first].into_iter().chain(changes).chain([ended, ("another", began(2))]);
            check(&evidence(facts.collect()))
        };
        let changed = |message: &str| Fact::Changed { operation: Operation::Update, message: message.into() };
        let renewal = || failed(Operation::Update);
        assert!(with([renewal(), changed("another message")]).is_empty());
        let refused = Fact::CallRefused { operation: Operation::Delete };
        for found in [with([renewal(), changed("m")]), with([changed("m"), refused])] {
            assert_eq!(found[0].what, "a job ran twice without a cause");
        }
    }

    #[test]
    fn run_of_a_job_that_was_done_before_its_worker_ended_is_found() {
        let worker_ends = |before: Option<Fact>, abandoned| {
            let ends = Fact::Incident(Disturbance::WorkerEnded { abandoned, error: None });
            let ends = before.into_iter().chain([ends]).map(|fact| ("w", fact));
            check(&evidence(done().into_iter().chain(ends).chain([("another", began(2))]).collect()))
        };
        assert!(worker_ends(None, 1).is_empty(), "its delivery may not have ended");
        let wrong = [worker_ends(None, 0), worker_ends(Some(settled(Outcome::Completed)), 1)];
        assert!(wrong.iter().all(|found| found[0].what == "a job ran twice without a cause"));
    }

    #[test]
    fn run_of_a_message_whose_letter_was_stored_is_found() {
        let received = Fact::Received {
            queue: "orders".into(),
            inserted: SystemTime::UNIX_EPOCH,
            delivery: 1,
            asked: 0,
        };
        let (queue, verdict) = ("orders-poison".into(), Verdict::Acknowledged);
        let stored = Fact::Put { queue, verdict, expires: None };
        let letter = [("w", Fact::PutBegan { queue: "orders-poison".into() }), ("w", stored)];
        // The process dies before it deletes the message.
        let history = |before: Option<Fact>| {
            let before = [received.clone()].into_iter().chain(before).map(|fact| ("w", fact));
            let facts = before.chain(letter.clone()).chain([("w", killed()), ("another", began(1))]);
            check(&evidence(facts.collect()))
        };
        assert!(history(Some(failed(Operation::Update))).is_empty(), "its end may not be recorded");
        assert_eq!(history(None)[0].what, "a job runs beside its dead letter");
    }

    /// Returns the findings about a job that dies, is put back in two puts and runs to its end twice.
    fn findings_of_two_puts(first: Verdict, disturbance: Option<Fact>) -> Vec<Finding> {
        let put = |queue: &str, verdict| {
            let began = Fact::PutBegan { queue: queue.into() };
            [began, Fact::Put { queue: queue.into(), verdict, expires: None }]
        };
        let run = |run, inserted| {
            let inserted = SystemTime::UNIX_EPOCH + Duration::from_secs(inserted);
            let began = Fact::RunBegan { run, inserted, delivery: 1, attempt: 1, max_attempts: 3 };
            [began, Fact::RunEnded { run, end: RunEnd::Done }]
        };
        let acknowledged = Verdict::Acknowledged;
        let sent =
            [Fact::SendBegan { queue: "orders".into() }].into_iter().chain(put("orders", acknowledged));
        let died =
            put("orders-poison", acknowledged).into_iter().chain([Fact::Deleted { queue: "orders".into() }]);
        let put_back = [Fact::Redriven].into_iter().chain(put("orders", first)).chain(disturbance);
        let ran = put("orders", acknowledged).into_iter().chain(run(1, 1)).chain(run(2, 2));
        check(&evidence(sent.chain(died).chain(put_back).chain(ran).map(|fact| ("w", fact)).collect()))
    }

    #[test]
    fn second_run_of_a_letter_that_was_put_back_twice_is_found() {
        assert!(findings_of_two_puts(Verdict::Unknown, None).is_empty());
        assert!(findings_of_two_puts(Verdict::Acknowledged, Some(killed())).is_empty());
        let found = findings_of_two_puts(Verdict::Acknowledged, None);
        assert_eq!(found[0].what, "a job ran twice without a cause");
    }

    /// Returns the findings about the slot of a schedule that is put, runs to its end, and is put again.
    fn findings_of_two_slots(after_the_put: Vec<(&'static str, Fact)>) -> Vec<Finding> {
        let put = || {
            let (queue, verdict) = (Arc::<str>::from("ticks"), Verdict::Acknowledged);
            [Fact::PutBegan { queue: Arc::clone(&queue) }, Fact::Put { queue, verdict, expires: None }]
        };
        let run = |run| {
            let inserted = SystemTime::UNIX_EPOCH + Duration::from_secs(run);
            let began = Fact::RunBegan { run, inserted, delivery: 1, attempt: 1, max_attempts: 3 };
            [began, Fact::RunEnded { run, end: RunEnd::Done }]
        };
        const SLOT: &str = "schedule/ticks/1";
        let own = |facts: Vec<Fact>| facts.into_iter().map(|fact| (SLOT, fact)).collect::<Vec<_>>();
        let ends = own(run(1).into_iter().chain([Fact::Deleted { queue: "ticks".into() }]).collect());
        let again = own(put().into_iter().chain(run(2)).collect());
        let facts = own(put().into()).into_iter().chain(after_the_put).chain(ends).chain(again);
        let entry = |(number, (job, fact)): (usize, (&str, Fact))| {
            let (at, node) = (Duration::ZERO, "w".into());
            Entry { number, at, node, job: Some(job.into()), fact }
        };
        let history = facts.enumerate().map(entry).collect();
        check(&Evidence { history, ..Evidence::default() })
    }

    #[test]
    fn slot_that_is_put_again_after_it_was_recorded_is_found() {
        let next = ("schedule/ticks/2", Fact::PutBegan { queue: "ticks".into() });
        let killed = ("", killed());
        assert!(findings_of_two_slots(vec![killed.clone()]).is_empty());
        for wrong in [vec![], vec![next, killed]] {
            let found = findings_of_two_slots(wrong);
            assert_eq!(found[0].what, "a job ran twice without a cause");
        }
    }
}
