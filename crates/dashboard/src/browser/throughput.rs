//! The ended jobs of the last hour, by the counters of the workers.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::SystemTime;

use jiff::Timestamp;
use jobqueue_admin::{Counters, WorkerRecord};

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
    /// Adds the counts since the last snapshot.
    pub(crate) fn look<'a>(&mut self, now: SystemTime, workers: impl IntoIterator<Item = &'a WorkerRecord>) {
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
            for counters in &worker.counters {
                let key = (worker.id.clone(), counters.queue.clone(), counters.kind.clone());
                let total = totals(counters);
                let from = before.get(&key).copied();
                let is_known = before.keys().any(|(id, ..)| *id == worker.id);
                if let Some(from) = from.or((is_new || is_known).then(Minute::default)) {
                    self.add(&counters.queue, total.less(from), passed);
                }
                self.known.insert(key, total);
            }
        }
        self.looked = Some(now);
    }

    /// Spreads the counts of the last minutes evenly over them.
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

fn started_after(worker: &WorkerRecord, time: SystemTime) -> bool {
    let started = worker.started.parse::<Timestamp>();
    started.is_ok_and(|started| SystemTime::from(started) >= time)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn worker(id: &str, started: u64, completed: u64) -> WorkerRecord {
        let started = Timestamp::from_second(started.try_into().unwrap()).unwrap().to_string();
        let counters = serde_json::json!([{"queue": "mails", "kind": "mail", "completed": completed, "retried": 1,
            "dead_lettered": 0, "other": 0, "run_seconds": 1.0, "run_times": []}]);
        serde_json::from_value(serde_json::json!({"id": id, "name": "w", "host": "h", "pid": 1, "version": "0", "started": started,
            "written": started, "interval_seconds": 15.0, "queues": [], "slots": 1, "draining": false, "running": [],
            "running_total": 0, "counters": counters}))
        .unwrap()
    }

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn only_what_ended_since_the_first_look_counts() {
        let mut throughput = Throughput::default();
        throughput.look(at(6_000), &[worker("a", 10, 500)]);
        assert!(throughput.of_queue("mails").is_empty());
        throughput.look(at(6_010), &[worker("a", 10, 507), worker("b", 6_005, 3)]);
        let minutes = throughput.of_queue("mails");
        assert_eq!((minutes.len(), minutes[MINUTES - 1]), (MINUTES, Minute { completed: 10, failed: 1 }));
    }

    #[test]
    fn worker_that_was_only_unseen_does_not_count_again() {
        let mut throughput = Throughput::default();
        throughput.look(at(6_000), &[]);
        throughput.look(at(6_010), &[worker("a", 10, 500)]);
        assert!(throughput.of_queue("mails").is_empty());
    }

    #[test]
    fn long_pause_between_two_looks_is_spread() {
        let mut throughput = Throughput::default();
        throughput.look(at(6_000), &[worker("a", 10, 0)]);
        throughput.look(at(6_000 + 4 * 60), &[worker("a", 10, 9)]);
        let completed: Vec<u64> =
            throughput.of_queue("mails").iter().map(|minute| minute.completed).collect();
        assert_eq!(completed[MINUTES - 5..], [0, 2, 2, 2, 3]);
        throughput.look(at(6_000 + 200 * 60), &[worker("a", 10, 9)]);
        assert_eq!(throughput.of_all().iter().map(|minute| minute.completed).sum::<u64>(), 0);
    }
}
