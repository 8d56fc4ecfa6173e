//! The cause of each further complete run of a job.

use std::collections::BTreeMap;

use super::history::{History, Job, Run};

/// Returns the causes and how often each was found, and the jobs that ran again without one.
pub fn causes(history: &History) -> (BTreeMap<&'static str, usize>, Vec<String>) {
    let (mut found, mut without) = (BTreeMap::new(), Vec::new());
    for (id, job) in &history.jobs {
        if let Err(why) = explain(history, job, &mut found) {
            without.push(format!("{id}: {why}: {job:#?}"));
        }
    }
    (found, without)
}

/// Each complete run except one left its message behind, or ran a further message of the job.
fn explain(
    history: &History,
    job: &Job,
    found: &mut BTreeMap<&'static str, usize>,
) -> Result<(), &'static str> {
    let redriven = job.redriven_twice(&history.doubtful);
    let further = job.doubts as usize + redriven;
    let completed = job.runs.iter().filter(|run| run.is_completed());
    let first_completed = completed.clone().filter_map(|run| run.outcome.as_ref()).map(|(at, _)| *at).min();
    if further == 0 && first_completed.is_some_and(|at| job.runs.iter().any(|run| run.start > at)) {
        return Err("it was delivered after its deletion was acknowledged");
    }
    if job.ends() < 2 {
        return Ok(());
    }
    // Those without which it would have run once, in the order of the evidence for them.
    let mut again = job.ends() - 1;
    for run in job.runs.iter().filter(|run| run.end.is_some() && !run.is_completed()) {
        if again == 0 {
            return Ok(());
        }
        *found.entry(left_behind(history, run).ok_or("a run left its message behind")?).or_default() += 1;
        again -= 1;
    }
    let sent_again = again.min(job.doubts as usize);
    let redriven = redriven.min(again - sent_again);
    for (cause, times) in [("sent twice in doubt", sent_again), ("redriven twice", redriven)] {
        if times > 0 {
            *found.entry(cause).or_default() += times;
        }
    }
    if again > sent_again + redriven {
        Err("it was deleted more often than there were messages of it")
    } else {
        Ok(())
    }
}

/// Returns the reason why a complete run did not delete its message.
fn left_behind(history: &History, run: &Run) -> Option<&'static str> {
    let doubtful = history.doubtful.contains_key(&run.process);
    match run.outcome.as_ref().map(|(_, outcome)| outcome.as_str()) {
        // The last worker is not killed.
        None => (!run.process.starts_with("drain")).then_some("its process was killed"),
        Some("completed_uncertain") => Some("an answer was lost"),
        Some("lease_lost") if doubtful => Some("an answer was lost"),
        Some("lease_lost") => Some("its lease was lost"),
        Some("released" | "retried" | "duplicate") if doubtful => Some("an answer was lost"),
        Some(_) => None,
    }
}
