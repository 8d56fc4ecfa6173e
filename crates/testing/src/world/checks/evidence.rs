//! The history of a world, job by job, and the events that explain another delivery of a message.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use crate::world::builder::Finding;
use crate::world::disturbance::Disturbance;
use crate::world::ledger::{Entry, Fact, RunEnd};

/// The lease of a message may end this long before the message expires.
pub(super) const EXPIRY_MARGIN: Duration = Duration::from_secs(3);

/// The evidence that the checks read.
#[derive(Default)]
pub(super) struct Evidence {
    pub(super) history: Vec<Entry>,
    /// The ids of the messages in dead-letter queues at the end.
    pub(super) dead: BTreeSet<String>,
    /// The ids of the messages in other queues at the end.
    pub(super) left: BTreeSet<String>,
    /// The ids of jobs that were removed on purpose: cancelled, purged or cleared.
    pub(super) accounted: BTreeSet<String>,
}

/// A delivery may continue for this long after its message has expired.
const MAX_OVERRUN: Duration = Duration::from_secs(90);

impl Evidence {
    /// Returns the jobs, sorted by name.
    pub(super) fn jobs(&self) -> Vec<Job<'_>> {
        let mut jobs: BTreeMap<&Arc<str>, Vec<&Entry>> = BTreeMap::new();
        for entry in &self.history {
            if let Some(id) = &entry.job {
                jobs.entry(id).or_default().push(entry);
            }
        }
        let job =
            |(id, entries): (_, Vec<_>)| Job { id, runs: runs(&entries), entries, history: &self.history };
        jobs.into_iter().map(job).collect()
    }
}

/// The history of one job.
pub(super) struct Job<'a> {
    pub(super) id: &'a Arc<str>,
    pub(super) entries: Vec<&'a Entry>,
    /// The runs, in the order in which they began.
    pub(super) runs: Vec<JobRun<'a>>,
    history: &'a [Entry],
}

/// A run of a handler.
#[derive(Clone, Copy)]
pub(super) struct JobRun<'a> {
    pub(super) number: u64,
    pub(super) began: &'a Entry,
    pub(super) delivery: u32,
    pub(super) attempt: u32,
    /// The message of the delivery, identified by the time at which it was inserted.
    pub(super) message: SystemTime,
    /// The number of the first entry from which on its process may have had the lease.
    leased: usize,
    pub(super) end: Option<(RunEnd, &'a Entry)>,
}

impl JobRun<'_> {
    pub(super) fn is_done(&self) -> bool {
        matches!(self.end, Some((RunEnd::Done, _)))
    }

    /// Returns whether the run had ended before an entry.
    pub(super) fn has_ended(&self, before: usize) -> bool {
        self.end.is_some_and(|(_, entry)| entry.number < before)
    }
}

fn runs<'a>(entries: &[&'a Entry]) -> Vec<JobRun<'a>> {
    let mut runs: Vec<JobRun<'a>> = Vec::new();
    for (at, entry) in entries.iter().enumerate() {
        match &entry.fact {
            Fact::RunBegan { run, inserted, delivery, attempt, .. } => runs.push(JobRun {
                number: *run,
                began: entry,
                delivery: *delivery,
                attempt: *attempt,
                message: *inserted,
                leased: leased(&entries[..at], entry, (*inserted, *delivery)),
                end: None,
            }),
            Fact::RunEnded { run, end, .. } => {
                if let Some(began) = runs.iter_mut().find(|began| began.number == *run) {
                    began.end = Some((*end, entry));
                }
            }
            _ => {}
        }
    }
    runs
}

/// Returns the number of the first entry after the process of a run asked for the delivery.
fn leased(before: &[&Entry], began: &Entry, own: (SystemTime, u32)) -> usize {
    let received = before.iter().rev().find_map(|entry| match &entry.fact {
        Fact::Received { inserted, delivery, asked, .. }
            if entry.node == began.node && (*inserted, *delivery) == own =>
        {
            Some(*asked)
        }
        _ => None,
    });
    received.unwrap_or(began.number)
}

/// Returns whether a queue holds dead letters.
pub(super) fn is_of_dead_letters(queue: &str) -> bool {
    queue.contains("-poison")
}

impl Job<'_> {
    /// Returns a finding about this job.
    pub(super) fn finding(&self, what: &'static str, detail: String) -> Finding {
        Finding { what, subject: self.id.to_string(), detail }
    }

    /// Returns the queues to which the job was sent, into which it was put, or from which it was received.
    pub(super) fn queues(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().filter_map(|entry| match &entry.fact {
            Fact::SendBegan { queue } | Fact::PutBegan { queue } | Fact::Received { queue, .. } => {
                Some(&**queue)
            }
            _ => None,
        })
    }

    /// Returns the runs of each message, in the order in which they began.
    pub(super) fn by_message(&self) -> Vec<Vec<JobRun<'_>>> {
        let mut messages: BTreeMap<SystemTime, Vec<JobRun<'_>>> = BTreeMap::new();
        for run in &self.runs {
            messages.entry(run.message).or_default().push(*run);
        }
        messages.into_values().collect()
    }

    /// Returns the run of a delivery of `message` that began before `entry` in the same process.
    pub(super) fn run_of(&self, entry: &Entry, message: SystemTime, delivery: u32) -> Option<JobRun<'_>> {
        let is_own = |run: &&JobRun<'_>| {
            run.began.number < entry.number
                && run.began.node == entry.node
                && (run.message, run.delivery) == (message, delivery)
        };
        self.runs.iter().rev().find(is_own).copied()
    }

    /// Returns whether the message of a run may be delivered again before an entry. The causes are: its
    /// process was killed, stopped or cut off while it had the lease; a change of a message of this job
    /// failed in that process, and no later change of that message succeeded; or its worker ended before the
    /// delivery did.
    pub(super) fn may_lose_lease(&self, run: &JobRun<'_>, before: usize) -> bool {
        let node = &run.began.node;
        self.was_stopped(node, run.leased, before)
            || self.is_in_doubt(node, run.leased, before)
            || self.was_abandoned(run, before)
    }

    /// Returns whether a change of a message of this job failed in a process between two entries, or fails
    /// later without having been answered at the second entry, and no change of the message succeeded
    /// meanwhile. Changes of another delivery do not count.
    fn is_in_doubt(&self, node: &Arc<str>, since: usize, before: usize) -> bool {
        let own = || self.entries.iter().filter(|entry| entry.node == *node);
        own().any(|failed| {
            let Fact::CallFailed { message, asked, .. } = &failed.fact else { return false };
            let succeeds =
                |later: &&Entry| matches!(&later.fact, Fact::Changed { message: of, .. } if of == message);
            let mut later = own()
                .filter(|later| (failed.number..before).contains(&later.number))
                .take_while(|later| !matches!(later.fact, Fact::Received { .. }));
            failed.number >= since && *asked < before && !later.any(succeeds)
        })
    }

    /// Returns whether the worker of a run ended before an entry, abandoned some deliveries, and had not
    /// settled the delivery of this run.
    fn was_abandoned(&self, run: &JobRun<'_>, before: usize) -> bool {
        let own = |entry: &&Entry| entry.node == run.began.node;
        let ended = self.entries_between(run.leased, before).filter(own).find(|entry| {
            matches!(&entry.fact, Fact::Incident(Disturbance::WorkerEnded { abandoned: 1.., .. }))
        });
        let is_settled = |fact: &Fact| matches!(fact, Fact::Settled { inserted: Some(inserted), delivery, .. } if (*inserted, *delivery) == (run.message, run.delivery));
        ended.is_some_and(|ended| {
            let mut of_job = self.entries.iter().filter(|entry| entry.node == run.began.node);
            !of_job.any(|entry| entry.number < ended.number && is_settled(&entry.fact))
        })
    }

    /// Returns whether, between two entries, a process was killed, stopped or cut off, or a change of a
    /// message of this job failed in it.
    pub(super) fn may_fail_between(&self, node: &Arc<str>, since: usize, before: usize) -> bool {
        let mut own = self.entries_between(since, before).filter(|entry| entry.node == *node);
        own.any(|entry| match &entry.fact {
            Fact::CallFailed { .. } => entry.job.as_ref() == Some(self.id),
            Fact::Incident(disturbance) => disturbance.stops(),
            _ => false,
        })
    }

    /// Returns whether a process was killed, stopped or cut off between two entries.
    pub(super) fn was_stopped(&self, node: &Arc<str>, since: usize, before: usize) -> bool {
        let stops = |entry: &Entry| matches!(&entry.fact, Fact::Incident(disturbance) if disturbance.stops());
        self.entries_between(since, before).any(|entry| entry.node == *node && stops(entry))
    }

    /// Returns the entries of the history from `since` up to, but without, `before`.
    pub(super) fn entries_between(&self, since: usize, before: usize) -> impl Iterator<Item = &Entry> {
        self.history[since..before.clamp(since, self.history.len())].iter()
    }

    /// Returns whether an entry is so close to the expiry of a message of this job that no lease can be
    /// renewed, or so soon after it that an earlier delivery may still run.
    pub(super) fn is_about_to_expire(&self, entry: &Entry) -> bool {
        self.expires().any(|expires| (expires..expires + MAX_OVERRUN).contains(&(entry.at + EXPIRY_MARGIN)))
    }

    /// Returns the times at which messages of the job may expire.
    pub(super) fn expires(&self) -> impl Iterator<Item = Duration> {
        self.entries.iter().filter_map(|entry| match &entry.fact {
            Fact::Sent { expires, .. } | Fact::Put { expires, .. } => *expires,
            _ => None,
        })
    }
}
