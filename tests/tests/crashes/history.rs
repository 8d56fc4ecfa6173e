//! The history of each job, from all books together.

use std::collections::{BTreeMap, BTreeSet};

use super::jobs::children_of;
use super::ledger::Entry;

/// A call of a handler.
#[derive(Debug)]
pub struct Run {
    pub process: String,
    pub start: u128,
    pub resumed_at: u32,
    pub end: Option<u128>,
    /// The outcome that the worker reported, and when; nothing if it died before.
    pub outcome: Option<(u128, String)>,
}

impl Run {
    /// Returns whether another run of the one message began while this one, whose completion was
    /// acknowledged, had it.
    fn had_the_message_at(&self, start: u128) -> bool {
        let completed = self.outcome.as_ref().filter(|_| self.is_completed());
        completed.is_some_and(|(at, _)| self.start < start && start < *at)
    }

    pub fn is_completed(&self) -> bool {
        self.outcome.as_ref().is_some_and(|(_, outcome)| outcome == "completed")
    }
}

/// The history of one job.
#[derive(Debug, Default)]
pub struct Job {
    pub intended: Option<u128>,
    sender: Option<String>,
    /// True if its sender was answered.
    is_known: bool,
    pub sent: Option<u128>,
    /// True if it was certainly not stored.
    pub refused: bool,
    /// The number of further messages that senders may have stored.
    pub doubts: u32,
    /// The operators that have redriven its dead letters, or may have.
    pub redrives: Vec<String>,
    /// The number of times that it was certainly redriven.
    pub redriven: u32,
    pub is_letter: bool,
    pub failed: u32,
    pub attempts: u32,
    /// The acknowledged checkpoints, each with its time.
    pub saved: Vec<(u128, u32)>,
    pub runs: Vec<Run>,
}

impl Job {
    /// Returns whether a handler ran beside one that had the only message of the job.
    pub fn has_run_beside_owner(&self) -> bool {
        let is_beside = |other: &Run| self.runs.iter().any(|run| run.had_the_message_at(other.start));
        self.doubts == 0 && self.redrives.is_empty() && self.runs.iter().any(is_beside)
    }

    pub fn first_end(&self) -> Option<u128> {
        self.runs.iter().filter_map(|run| run.end).min()
    }

    pub fn first_start(&self) -> Option<u128> {
        self.runs.iter().map(|run| run.start).min()
    }

    /// Returns the number of further messages that redrives may have made: a dead letter was put back twice,
    /// by an operator that was killed or after a lost answer, or was written twice.
    pub fn redriven_twice(&self, doubtful: &BTreeMap<String, u128>) -> usize {
        let in_doubt = self.redrives.iter().any(|operator| doubtful.contains_key(operator));
        self.redrives.len().saturating_sub(1) + usize::from(in_doubt)
    }

    pub fn ends(&self) -> usize {
        self.runs.iter().filter(|run| run.end.is_some()).count()
    }

    fn run_of(&mut self, process: &str) -> Option<&mut Run> {
        self.runs.iter_mut().rev().find(|run| run.process == process)
    }
}

/// All jobs and batches of a run.
#[derive(Debug, Default)]
pub struct History {
    pub jobs: BTreeMap<String, Job>,
    pub batches: BTreeSet<String>,
    /// The sends of unique jobs: the key, the time of the send, the job.
    pub unique: Vec<(u32, u128, u128, String)>,
    /// Each start and restart of a batch.
    begun: Vec<String>,
    /// The processes with uncertain calls, and the time of the last one.
    pub doubtful: BTreeMap<String, u128>,
    /// The time at which the last worker had run all jobs but the dead letters.
    pub quiet: Option<u128>,
    pub snoozes: u32,
    pub problems: Vec<String>,
}

impl History {
    pub fn of(entries: Vec<Entry>) -> Self {
        let mut history = Self::default();
        for entry in entries {
            history.add(entry);
        }
        history.doubt_what_the_dead_sent();
        history
    }

    /// A sender that was killed has not reported that it may have stored a message twice, nor has one that
    /// continues a batch.
    fn doubt_what_the_dead_sent(&mut self) {
        for (id, job) in self.jobs.iter_mut().filter(|(_, job)| !job.is_known) {
            let last_doubt = job.sender.as_ref().and_then(|sender| self.doubtful.get(sender));
            // In the place of the sender of a unique job another may have sent it, and died as well.
            job.doubts += u32::from(last_doubt.copied() > job.intended || id.contains("-u"));
        }
        let mut begun = BTreeSet::new();
        for batch in self.begun.iter().filter(|batch| !begun.insert(*batch)) {
            for child in children_of(batch) {
                self.jobs.entry(child).or_default().doubts += 1;
            }
        }
    }

    fn add(&mut self, entry: Entry) {
        let Entry { at, process, what, number, job: id } = entry;
        match what.as_str() {
            "doubtful" => _ = self.doubtful.insert(process, at),
            "sealed" => _ = self.batches.insert(id),
            "begin" => self.begun.push(id),
            "quiet" => self.quiet = Some(at),
            "joined" => {}
            "snoozed" => self.snoozes += 1,
            "damaged" | "wrong" | "stuck" => self.problems.push(format!("{what}: {id} ({number})")),
            _ => self.add_to_job(Entry { at, process, what, number, job: id }),
        }
    }

    fn add_to_job(&mut self, entry: Entry) {
        let Entry { at, process, what, number, job: id } = entry;
        let job = self.jobs.entry(id.clone()).or_default();
        job.is_known |= matches!(what.as_str(), "sent" | "refused" | "doubt");
        match what.as_str() {
            "intend" => (job.intended, job.sender) = (Some(at), Some(process)),
            "sent" => job.sent = job.sent.or(Some(at)),
            "refused" => job.refused = job.doubts == 0,
            "doubt" => job.doubts += 1,
            "unique" => self.unique.push((number, job.intended.unwrap_or(at), at, id)),
            "redrive" => job.redrives.push(process),
            "redriven" => job.redriven += 1,
            "letter" => job.is_letter = true,
            "failed" => job.failed += 1,
            "attempt" => job.attempts = job.attempts.max(number),
            "saved" => job.saved.push((at, number)),
            "start" => {
                job.runs.push(Run { process, start: at, resumed_at: number, end: None, outcome: None })
            }
            "end" => job.run_of(&process).unwrap().end = Some(at),
            outcome => match job.run_of(&process) {
                // Another delivery to the same process may have ended without a run.
                Some(run) if !run.is_completed() => run.outcome = Some((at, outcome.to_owned())),
                _ => {}
            },
        }
    }
}
