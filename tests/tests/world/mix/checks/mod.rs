//! Judges the promises of features, one file each.

mod batches;
mod blobs;
mod cancelled;
pub(super) mod journal;
mod noticed;
mod operator;
mod order;
mod planted;
mod progress;
mod schedule;
mod types;
mod unique;

use std::collections::BTreeSet;

use jobqueue_testing::world::{Entry, Fact, Finding, RunEnd, World};

use super::diary::Diary;

/// The evidence that the checks read.
struct Evidence {
    world: World,
    history: Vec<Entry>,
    diary: Diary,
    /// The ids of the dead letters at the end.
    dead: BTreeSet<String>,
}

/// A run of a handler: its number in the world, and the entries of its start and its end.
struct Run {
    number: u64,
    began: usize,
    ended: Option<usize>,
}

impl Evidence {
    /// Returns the first entry of a job whose fact satisfies `is`.
    fn first(&self, id: &str, is: impl Fn(&Fact) -> bool) -> Option<usize> {
        self.history.iter().find(|entry| is_of(entry, id) && is(&entry.fact)).map(|entry| entry.number)
    }

    fn began(&self, id: &str) -> Option<usize> {
        self.first(id, |fact| matches!(fact, Fact::RunBegan { .. }))
    }

    fn done(&self, id: &str) -> Option<usize> {
        self.first(id, |fact| matches!(fact, Fact::RunEnded { end: RunEnd::Done, .. }))
    }

    /// Returns whether a worker has reported the job as completed, which means that its message is deleted.
    fn is_settled(&self, id: &str) -> bool {
        use jobqueue::Outcome::Completed;
        self.first(id, |fact| matches!(fact, Fact::Settled { outcome: Completed, .. })).is_some()
    }

    /// Returns the entry that first reported the dead letter of a job.
    fn died(&self, id: &str) -> Option<usize> {
        use jobqueue::Outcome::DeadLettered;
        self.first(id, |fact| matches!(fact, Fact::Settled { outcome: DeadLettered(_), .. }))
    }

    /// Returns the last end of a run of the job before an entry.
    fn ended_before(&self, id: &str, number: usize) -> Option<usize> {
        let is_end = |entry: &&Entry| is_of(entry, id) && matches!(entry.fact, Fact::RunEnded { .. });
        self.history[..number].iter().rev().find(is_end).map(|entry| entry.number)
    }

    /// Returns the end of the last run that began before an entry. (A process that was frozen may report the
    /// end of an earlier run later.)
    fn last_run_ended(&self, id: &str, number: usize) -> Option<usize> {
        let last = self.history[..number].iter().rev().find_map(|entry| match &entry.fact {
            Fact::RunBegan { run, .. } if is_of(entry, id) => Some(*run),
            _ => None,
        })?;
        self.first(id, |fact| matches!(fact, Fact::RunEnded { run, .. } if *run == last))
    }

    /// Returns the runs of a job in the order in which they began.
    fn runs(&self, id: &str) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for entry in &self.history {
            match &entry.fact {
                Fact::RunBegan { run, .. } if is_of(entry, id) => {
                    runs.push(Run { number: *run, began: entry.number, ended: None });
                }
                Fact::RunEnded { run, .. } => {
                    if let Some(began) = runs.iter_mut().find(|began| began.number == *run) {
                        began.ended = Some(entry.number);
                    }
                }
                _ => {}
            }
        }
        runs
    }

    /// Returns the run of a job during which its handler wrote an entry.
    fn run_at(&self, id: &str, number: usize) -> Option<u64> {
        let node = &self.history[number].node;
        self.history[..number].iter().rev().find_map(|entry| match &entry.fact {
            Fact::RunBegan { run, .. } if is_of(entry, id) && entry.node == *node => Some(*run),
            _ => None,
        })
    }

    /// Returns whether a job was removed on purpose, or may have been.
    fn is_accounted(&self, id: &str) -> bool {
        let removals = self.history.iter().filter(|entry| is_of(entry, id)).map(|entry| match entry.fact {
            Fact::TakenAway { .. } => 1,
            Fact::Kept => -1,
            _ => 0,
        });
        removals.sum::<i32>() > 0
    }

    fn is_cleared(&self, id: &str) -> bool {
        let is_cleared =
            |fact: &Fact| matches!(fact, Fact::TakenAway { why, .. } if why.starts_with("cleared"));
        self.is_accounted(id) && self.first(id, is_cleared).is_some()
    }

    fn is_redriven(&self, id: &str) -> bool {
        self.first(id, |fact| matches!(fact, Fact::Redriven)).is_some()
    }
}

/// Returns whether an entry concerns a job.
fn is_of(entry: &Entry, id: &str) -> bool {
    entry.job.as_deref() == Some(id)
}

fn finding(what: &'static str, subject: &str, detail: String) -> Finding {
    Finding { what, subject: subject.to_owned(), detail }
}

pub(super) async fn all(world: World, diary: Diary) -> Vec<Finding> {
    let mut findings = diary.found();
    let (dead, unreadable) = blobs::dead_letters(&world).await;
    findings.extend(unreadable);
    let evidence = Evidence { world: world.clone(), history: world.history(), diary, dead };
    findings.extend(order::check(&evidence));
    findings.extend(batches::check(&evidence));
    findings.extend(unique::check(&evidence));
    findings.extend(cancelled::check(&evidence));
    findings.extend(progress::check(&evidence));
    findings.extend(operator::check(&evidence));
    findings.extend(types::check(&evidence));
    let waiting = schedule::waiting(&world).await;
    findings.extend(schedule::check(&evidence, &waiting));
    findings.extend(journal::check(&world, &evidence).await);
    findings.extend(blobs::orphans(&world, &evidence.diary.plan).await);
    findings.extend(journal::left_over(&world, &evidence.diary.plan).await);
    findings
}
