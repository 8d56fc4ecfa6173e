//! The jobs that ended in the last hour, by minute.

use std::collections::{BTreeMap, VecDeque};
use std::time::SystemTime;

use tokio::time::Instant;

use crate::snapshot::Snapshot;

pub(crate) const MINUTES: usize = 60;

/// The jobs that ended within a minute.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Minute {
    pub(crate) completed: u64,
    /// Failed attempts, whether a retry or a dead letter follows.
    pub(crate) failed: u64,
}

/// The minutes of each queue, ending with the current minute.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    queues: BTreeMap<String, VecDeque<Minute>>,
    /// The totals of the last snapshot with records of workers.
    sums: BTreeMap<String, Minute>,
    taken: Option<Instant>,
    current: Option<u64>,
}

impl Throughput {
    /// Adds the counts since the last snapshot with records of workers. The first one only sets the starting
    /// point.
    pub(crate) fn look(&mut self, snapshot: &Snapshot) {
        if snapshot.workers.is_err() || self.taken.is_some_and(|taken| taken >= snapshot.taken) {
            return;
        }
        self.taken = Some(snapshot.taken);
        let mut sums = BTreeMap::<String, Minute>::new();
        for (queue, _, totals) in snapshot.totals.iter() {
            let sum = sums.entry(queue.to_owned()).or_default();
            sum.completed += totals.completed;
            // A cancelled job is dead-lettered without a failed attempt.
            sum.failed += totals.retried + totals.dead_lettered.saturating_sub(totals.cancelled);
        }
        self.add(snapshot.as_of.into(), sums);
    }

    fn add(&mut self, now: SystemTime, sums: BTreeMap<String, Minute>) {
        let minute = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / 60;
        let Some(current) = self.current.replace(minute.max(self.current.unwrap_or_default())) else {
            self.sums = sums;
            return;
        };
        let passed = minute.saturating_sub(current);
        for minutes in self.queues.values_mut() {
            for _ in 0..passed.min(MINUTES as u64) {
                minutes.pop_front();
                minutes.push_back(Minute::default());
            }
        }
        let before = std::mem::replace(&mut self.sums, sums);
        for (queue, sum) in &self.sums {
            let before = before.get(queue).copied().unwrap_or_default();
            let ended = Minute {
                completed: sum.completed.saturating_sub(before.completed),
                failed: sum.failed.saturating_sub(before.failed),
            };
            if ended != Minute::default() {
                let minutes = self.queues.entry(queue.clone());
                spread(minutes.or_insert_with(|| vec![Minute::default(); MINUTES].into()), ended, passed);
            }
        }
    }

    /// Returns the minutes of a queue, oldest first; empty if no job has ended.
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

/// Spreads the counts of the last `passed` minutes evenly over these minutes. Leaves out the share of minutes
/// that are no longer kept.
fn spread(minutes: &mut VecDeque<Minute>, ended: Minute, passed: u64) {
    let parts = passed.clamp(1, MINUTES as u64);
    let kept = |count: u64| (u128::from(count) * u128::from(parts) / u128::from(passed.max(1))) as u64;
    let ended = Minute { completed: kept(ended.completed), failed: kept(ended.failed) };
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn long_pause_between_two_looks_is_spread() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let mails = |completed| BTreeMap::from([("mails".to_owned(), Minute { completed, failed: 0 })]);
        let mut throughput = Throughput::default();
        throughput.add(at(6_000), mails(0));
        assert!(throughput.of_queue("mails").is_empty());
        throughput.add(at(6_000 + 4 * 60), mails(9));
        let completed: Vec<u64> =
            throughput.of_queue("mails").iter().map(|minute| minute.completed).collect();
        assert_eq!(completed[MINUTES - 5..], [0, 2, 2, 2, 3]);
        throughput.add(at(6_000 + 200 * 60), mails(9));
        assert_eq!(throughput.of_all().iter().map(|minute| minute.completed).sum::<u64>(), 0);
    }

    #[test]
    fn only_the_last_hour_of_a_longer_pause_is_shown() {
        let at = |minutes: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(60 * minutes);
        let mails = |completed| BTreeMap::from([("mails".to_owned(), Minute { completed, failed: 0 })]);
        let mut throughput = Throughput::default();
        let shown =
            |throughput: &Throughput| throughput.of_all().iter().map(|minute| minute.completed).sum::<u64>();
        // The first look of this page: other readers have counted for a week.
        throughput.add(at(100), mails(700_000));
        assert_eq!(shown(&throughput), 0);
        throughput.add(at(101), mails(700_005));
        assert_eq!(shown(&throughput), 5);
        // 14 hours without viewers.
        throughput.add(at(101 + 840), mails(700_005 + 8_400));
        assert_eq!(shown(&throughput), 600);
        assert!(throughput.of_all().iter().all(|minute| minute.completed == 10));
    }
}
