//! Sums of the counters of workers that never fall, although workers come and go.

use std::collections::{BTreeMap, BTreeSet};

use jobqueue_admin::{Counters, HISTOGRAM_BOUNDS, WorkerOverview};

/// The kind under which messages are counted whose kind no worker has a handler for. Anybody may send any kind.
const OTHER_KINDS: &str = "other";
/// The most workers whose last counters are kept after they have gone.
const MAX_GONE: usize = 10_000;

/// The sums by queue and kind.
#[derive(Debug, Clone, Default)]
pub struct Totals {
    kinds: BTreeMap<(String, String), KindTotals>,
    /// The counters of each worker when it was last seen.
    seen: BTreeMap<String, BTreeMap<(String, String), KindTotals>>,
}

/// The sums of one kind on one queue.
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct KindTotals {
    /// Completed jobs.
    pub completed: u64,
    /// Failed attempts that are followed by a retry.
    pub retried: u64,
    /// Dead-lettered messages.
    pub dead_lettered: u64,
    /// Deliveries that ended otherwise.
    pub other: u64,
    /// The sum of the run times of all handlers, in seconds.
    pub run_seconds: f64,
    /// The number of run times in each class of [`HISTOGRAM_BOUNDS`], and above the last.
    pub run_times: [u64; HISTOGRAM_BOUNDS.len() + 1],
}

/// The sums of one queue that rates are made of.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct QueueRuns {
    pub(super) completed: u64,
    runs: u64,
    seconds: f64,
}

impl QueueRuns {
    pub(super) fn since(&self, before: &Self) -> Self {
        Self {
            completed: self.completed.saturating_sub(before.completed),
            runs: self.runs.saturating_sub(before.runs),
            seconds: (self.seconds - before.seconds).max(0.0),
        }
    }

    pub(super) fn mean(&self) -> Option<f64> {
        (self.runs > 0).then(|| self.seconds / self.runs as f64)
    }
}

impl Totals {
    /// Returns the sums, by queue and kind.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &KindTotals)> {
        self.kinds.iter().map(|((queue, kind), totals)| (queue.as_str(), kind.as_str(), totals))
    }

    /// Adds the workers' counts since the last snapshot.
    pub(super) fn add(&mut self, workers: &[WorkerOverview]) {
        for worker in workers {
            let known: BTreeSet<(&str, &str)> = worker
                .record
                .queues
                .iter()
                .flat_map(|queue| queue.kinds.iter().map(|kind| (queue.name.as_str(), kind.as_str())))
                .collect();
            let mut now = BTreeMap::<_, KindTotals>::new();
            for counters in &worker.record.counters {
                let is_known = known.contains(&(counters.queue.as_str(), counters.kind.as_str()));
                let kind = if is_known { &counters.kind } else { OTHER_KINDS };
                now.entry((counters.queue.clone(), kind.to_owned())).or_default().sum(&counters.into());
            }
            let before = self.seen.insert(worker.record.id.clone(), now.clone()).unwrap_or_default();
            for (key, totals) in now {
                let new = totals.since(before.get(&key));
                self.kinds.entry(key).or_default().sum(&new);
            }
        }
        if self.seen.len() > MAX_GONE {
            let present: BTreeSet<&str> = workers.iter().map(|worker| worker.record.id.as_str()).collect();
            self.seen.retain(|id, _| present.contains(id.as_str()));
        }
    }

    pub(super) fn by_queue(&self) -> BTreeMap<String, QueueRuns> {
        let mut queues = BTreeMap::<_, QueueRuns>::new();
        for (queue, _, totals) in self.iter() {
            let runs = queues.entry(queue.to_owned()).or_default();
            runs.completed += totals.completed;
            runs.runs += totals.run_times.iter().sum::<u64>();
            runs.seconds += totals.run_seconds;
        }
        queues
    }
}

impl From<&Counters> for KindTotals {
    fn from(counters: &Counters) -> Self {
        let mut run_times = [0; HISTOGRAM_BOUNDS.len() + 1];
        run_times.iter_mut().zip(&counters.run_times).for_each(|(to, from)| *to = *from);
        Self {
            completed: counters.completed,
            retried: counters.retried,
            dead_lettered: counters.dead_lettered,
            other: counters.other,
            run_seconds: counters.run_seconds,
            run_times,
        }
    }
}

impl KindTotals {
    fn sum(&mut self, more: &Self) {
        self.completed += more.completed;
        self.retried += more.retried;
        self.dead_lettered += more.dead_lettered;
        self.other += more.other;
        self.run_seconds += more.run_seconds;
        self.run_times.iter_mut().zip(more.run_times).for_each(|(to, more)| *to += more);
    }

    fn since(&self, before: Option<&Self>) -> Self {
        let Some(before) = before else { return self.clone() };
        let mut run_times = self.run_times;
        run_times.iter_mut().zip(before.run_times).for_each(|(to, less)| *to = to.saturating_sub(less));
        Self {
            completed: self.completed.saturating_sub(before.completed),
            retried: self.retried.saturating_sub(before.retried),
            dead_lettered: self.dead_lettered.saturating_sub(before.dead_lettered),
            other: self.other.saturating_sub(before.other),
            run_seconds: (self.run_seconds - before.run_seconds).max(0.0),
            run_times,
        }
    }
}
