//! The ended jobs of the last hour, by the counters of the workers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::SystemTime;

use jiff::Timestamp;
use jobqueue::admin::{Counters, WorkerOverview};

/// The number of minutes that are kept.
pub(crate) const MINUTES: usize = 60;

/// The jobs that ended within a minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Minute {
    pub(crate) completed: u64,
    /// Failed attempts, whether a retry or a dead letter follows.
    pub(crate) failed: u64,
}

/// The minutes of each queue, the current one last.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    queues: BTreeMap<String, VecDeque<Minute>>,
    /// The counters of the last look, by worker, queue and kind.
    known: HashMap<(String, String, String), Minute>,
    looked: Option<SystemTime>,
    current: Option<u64>,
}

impl Throughput {
    /// Adds what has happened since the last look.
    pub(crate) fn look(&mut self, now: SystemTime, workers: &[WorkerOverview]) {
        let minute = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let passed = self.current.map_or(0, |current| minute.saturating_sub(current));
        self.current = Some(minute.max(self.current.unwrap_or_default()));
        for minutes in self.queues.values_mut() {
            for _ in 0..passed.min(MINUTES as u64) {
                minutes.pop_front();
                minutes.push_back(Minute::default());
            }
        }
        let before = std::mem::take(&mut self.known);
        for worker in workers {
            // A worker that started after the last look has done everything since then.
            let is_new = self.looked.is_some_and(|looked| started_after(worker, looked));
            for counters in &worker.record.counters {
                let key = (worker.record.id.clone(), counters.queue.clone(), counters.kind.clone());
                let total = totals(counters);
                let from = before.get(&key).copied();
                let is_known = before.keys().any(|(id, ..)| *id == worker.record.id);
                if let Some(from) = from.or((is_new || is_known).then(Minute::default)) {
                    self.add(&counters.queue, total.less(from), passed);
                }
                self.known.insert(key, total);
            }
        }
        self.looked = Some(now);
    }

    /// Adds what ended within the last minutes, in equal parts.
    fn add(&mut self, queue: &str, ended: Minute, passed: u64) {
        if ended == Minute::default() {
            return;
        }
        let minutes = self.queues.entry(queue.to_owned());
        let minutes = minutes.or_insert_with(|| VecDeque::from(vec![Minute::default(); MINUTES]));
        let parts = passed.clamp(1, MINUTES as u64);
        let (completed, failed) = (ended.completed / parts, ended.failed / parts);
        for minute in minutes.iter_mut().rev().take(usize::try_from(parts).unwrap_or(MINUTES)) {
            minute.completed += completed;
            minute.failed += failed;
        }
        if let Some(last) = minutes.back_mut() {
            last.completed += ended.completed % parts;
            last.failed += ended.failed % parts;
        }
    }

    /// Returns the minutes of a queue, oldest first; none if nothing ended.
    pub(crate) fn of_queue(&self, queue: &str) -> Vec<Minute> {
        self.queues.get(queue).map(|minutes| minutes.iter().copied().collect()).unwrap_or_default()
    }

    /// Returns the minutes of all queues together, oldest first.
    pub(crate) fn of_all(&self) -> Vec<Minute> {
        let mut all = vec![Minute::default(); MINUTES];
        for minutes in self.queues.values() {
            for (sum, minute) in all.iter_mut().zip(minutes) {
                sum.completed += minute.completed;
                sum.failed += minute.failed;
            }
        }
        all
    }
}

impl Minute {
    fn less(self, from: Self) -> Self {
        Self {
            completed: self.completed.saturating_sub(from.completed),
            failed: self.failed.saturating_sub(from.failed),
        }
    }
}

fn totals(counters: &Counters) -> Minute {
    Minute { completed: counters.completed, failed: counters.retried + counters.dead_lettered }
}

fn started_after(worker: &WorkerOverview, time: SystemTime) -> bool {
    let started = worker.record.started.parse::<Timestamp>();
    started.is_ok_and(|started| SystemTime::from(started) >= time)
}
