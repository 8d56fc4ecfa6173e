//! The audit of the books.

use std::collections::BTreeMap;

use super::duplicates::causes;
use super::history::{History, Job};
use super::jobs::{Todo, children_of, goes_on, inner_batch};
use super::senders::WINDOW;

/// Returns everything that must not have happened.
pub fn audit(history: &History) -> Vec<String> {
    let mut problems = history.problems.clone();
    for (id, job) in &history.jobs {
        problems.extend(of_job(history, id, job).into_iter().map(|problem| format!("{problem}: {id}")));
    }
    for batch in &history.batches {
        problems.extend(of_batch(history, batch));
    }
    problems.extend(of_order(history));
    problems.extend(of_unique(history));
    let (causes, without) = causes(history);
    print(history, &causes);
    problems.extend(without.into_iter().map(|job| format!("a duplicate without a cause: {job}")));
    problems
}

fn of_job(history: &History, id: &str, job: &Job) -> Vec<&'static str> {
    let mut problems = Vec::new();
    let mut check = |fine: bool, problem| {
        if !fine {
            problems.push(problem);
        }
    };
    let done = job.first_end();
    if job.sent.is_some() {
        check(done.is_some(), "lost");
        let before = done.zip(history.quiet).is_some_and(|(done, quiet)| done < quiet);
        check(
            before || job.is_letter || id.ends_with("-last"),
            "neither done nor a dead letter when all was quiet",
        );
    }
    check(!job.refused || job.sent.is_some() || job.runs.is_empty(), "certainly not stored, and it ran");
    check(job.intended.is_some() || id.starts_with("b-") || job.runs.is_empty(), "ran and was never sent");
    // A failure is noted before it is returned.
    check(job.attempts <= job.failed + 1, "a crash cost an attempt");
    check(!job.is_letter || job.failed >= 3, "dead-lettered without failures");
    check(!job.has_run_beside_owner(), "it ran beside a run whose completion was acknowledged");
    // Of several messages each has checkpoints of its own.
    let newest_before = |start| job.saved.iter().filter(|(at, _)| *at < start).map(|(_, stage)| *stage).max();
    if job.doubts == 0 && job.redrives.is_empty() {
        let monotone = |run: &super::history::Run| run.resumed_at >= newest_before(run.start).unwrap_or(0);
        check(job.runs.iter().all(monotone), "resumed before what was acknowledged");
    }
    problems
}

/// The continuation of a batch ran, after all of its children.
fn of_batch(history: &History, batch: &str) -> Vec<String> {
    let Some(job) = history.jobs.get(batch) else {
        return vec![format!("the continuation never ran: {batch}")];
    };
    let Some(began) = job.first_start().filter(|_| job.first_end().is_some()) else {
        return vec![format!("the continuation did not end: {batch}")];
    };
    let ended = |id: &str| history.jobs.get(id).and_then(Job::first_end);
    let mut problems = Vec::new();
    for child in children_of(batch) {
        let last = if Todo::of(&child) == Todo::Fan { inner_batch(&child) } else { child };
        let may_be_dead = goes_on(batch) && Todo::of(&last) == Todo::Poison;
        match ended(&last) {
            None => problems.push(format!("a child was lost: {last}")),
            Some(end) if end > began && !may_be_dead => {
                problems.push(format!("the continuation began before the end of {last}"));
            }
            Some(_) => {}
        }
    }
    problems
}

/// A job of a key begins after the end of all jobs that were acknowledged when its send began. Jobs that may
/// become dead letters give up their positions.
fn of_order(history: &History) -> Vec<String> {
    let mut keys: BTreeMap<&str, Vec<(&str, &Job)>> = BTreeMap::new();
    for (id, job) in &history.jobs {
        if let Some(key) =
            id.get(2..).filter(|rest| rest.starts_with('o')).and_then(|rest| rest.split('-').next())
        {
            keys.entry(key).or_default().push((id, job));
        }
    }
    let mut problems = Vec::new();
    for jobs in keys.values() {
        for (id, job) in jobs {
            let (Some(intended), Some(start)) = (job.intended, job.first_start()) else { continue };
            let before = jobs.iter().filter(|(id, other)| {
                Todo::of(id) != Todo::Poison && other.sent.is_some_and(|sent| sent < intended)
            });
            for (other, _) in before.filter(|(_, other)| other.first_end().is_none_or(|end| end > start)) {
                problems.push(format!("out of order: {id} before {other}"));
            }
        }
    }
    problems
}

/// Within the window one job of a key is sent.
fn of_unique(history: &History) -> Vec<String> {
    let mut problems = Vec::new();
    for (nth, (key, from, until, id)) in history.unique.iter().enumerate() {
        for (other_key, other_from, other_until, other) in &history.unique[nth + 1..] {
            let apart = until.max(other_until) - from.min(other_from);
            if key == other_key && apart < WINDOW.as_nanos() {
                problems.push(format!("two unique jobs within the window: {id} and {other}"));
            }
        }
    }
    problems
}

fn print(history: &History, causes: &BTreeMap<&'static str, usize>) {
    let count = |what: fn(&Job) -> bool| history.jobs.values().filter(|job| what(job)).count();
    let again: usize = history.jobs.values().map(|job| job.ends().saturating_sub(1)).sum();
    let resumed = history.jobs.values().flat_map(|job| &job.runs).filter(|run| run.resumed_at > 0).count();
    println!(
        "{} intended, {} acknowledged, {} refused, {} done, {resumed} resumed, {} snoozed, {} redriven, {} dead letters left, {} batches; \
         {again} done again: {causes:?}",
        count(|job| job.intended.is_some()),
        count(|job| job.sent.is_some()),
        count(|job| job.refused),
        count(|job| job.ends() > 0),
        history.snoozes,
        count(|job| job.redriven > 0),
        count(|job| job.is_letter),
        history.batches.len(),
    );
}
