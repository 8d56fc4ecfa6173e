//! The jobs that ended in the last hour, by minute: those since the first look from the records of workers,
//! and those before from the journal, if there is one.

use std::collections::{BTreeMap, VecDeque};
use std::time::SystemTime;

use jobqueue_admin::JournalCounts;
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

/// The last hour of a queue, or of all queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hour {
    /// The minutes, oldest first.
    pub(crate) minutes: Vec<Minute>,
    /// The number of the first minutes that are unknown: the dashboard was not open, and the journal has
    /// nothing of them, or was not read.
    pub(crate) unknown: usize,
    /// The number of the minutes after these that are from the journal, which has no attempts that were
    /// retried.
    pub(crate) from_journal: usize,
    journal: JournalReading,
}

/// The progress of reading the journal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum JournalReading {
    #[default]
    Running,
    Done,
    Failed,
}

impl Hour {
    /// Returns whether all known minutes are 0.
    pub(crate) fn is_empty(&self) -> bool {
        self.minutes.iter().all(|minute| *minute == Minute::default())
    }

    /// Returns sentences about the minutes that the looks of this dashboard have not counted.
    pub(crate) fn note(&self) -> String {
        let mut note = String::new();
        if self.unknown > 0 {
            note += ". Grey minutes are unknown: this dashboard was not open, and ";
            note += match self.journal {
                JournalReading::Running => "the journal is still being read",
                JournalReading::Done => "nothing of them is known from the journal",
                JournalReading::Failed => "the journal cannot be read",
            };
        }
        if self.from_journal > 0 {
            note += ". Minutes before this dashboard was opened are from the journal, which has no retried attempts, and only the queues whose workers keep one";
        }
        note
    }
}

/// The minutes of each queue, ending with the current minute.
#[derive(Debug, Default)]
pub(crate) struct Throughput {
    queues: BTreeMap<String, VecDeque<Minute>>,
    /// The minute of the first look.
    first: Option<u64>,
    /// The first minute that was counted from the journal, by queue.
    counted_from: BTreeMap<String, u64>,
    journal: JournalReading,
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
        let minute = minute_of(now);
        let Some(current) = self.current.replace(minute.max(self.current.unwrap_or_default())) else {
            self.first = Some(minute);
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
                spread(self.queues.entry(queue.clone()).or_insert_with(no_minutes), ended, passed);
            }
        }
    }

    /// Returns whether a look has set the starting point.
    pub(crate) fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// Records that the journal cannot be read.
    pub(crate) fn fail_journal(&mut self) {
        self.journal = JournalReading::Failed;
    }

    /// Adds the jobs that ended up to the minute of the first look, as the journal has them. Later jobs are
    /// in the records of workers. Jobs that ended between a worker's last record before that look and the
    /// reading of the journal are in both, usually those of up to 15 seconds. Without that minute, jobs that
    /// ended just before the page was opened would be missing from it.
    ///
    /// The counts end at `until` by the clock of the looks. Their own times are by the storage's clock.
    pub(crate) fn add_journal(&mut self, counts: &JournalCounts, until: SystemTime) {
        self.journal = JournalReading::Done;
        let from = (minute_of(until) + 1).saturating_sub(counts.intervals as u64);
        let (Some(first), Some(current)) = (self.first, self.current) else { return };
        for (queue, ended) in &counts.queues {
            let minutes = self.queues.entry(queue.clone()).or_insert_with(no_minutes);
            for (minute, ended) in (from..=first).zip(ended) {
                let Some(ended) = ended else { continue };
                self.counted_from.entry(queue.clone()).or_insert(minute);
                let age = usize::try_from(current.saturating_sub(minute)).unwrap_or(MINUTES);
                if let Some(place) = (MINUTES - 1).checked_sub(age).and_then(|at| minutes.get_mut(at)) {
                    place.completed += ended.completed;
                    // A cancelled job is dead-lettered without a failed attempt.
                    place.failed += ended.dead_lettered.saturating_sub(ended.cancelled);
                }
            }
        }
    }

    /// Returns the last hour of a queue.
    pub(crate) fn of_queue(&self, queue: &str) -> Hour {
        let minutes = self.queues.get(queue).map(|minutes| minutes.iter().copied().collect());
        let minutes = minutes.unwrap_or_else(|| vec![Minute::default(); MINUTES]);
        self.hour(minutes, self.counted_from.get(queue).copied())
    }

    /// Returns the last hour of all queues together. Minutes from the journal are those of the queues whose
    /// workers keep one.
    pub(crate) fn of_all(&self) -> Hour {
        let mut all = vec![Minute::default(); MINUTES];
        for minutes in self.queues.values() {
            for (sum, minute) in all.iter_mut().zip(minutes) {
                sum.completed += minute.completed;
                sum.failed += minute.failed;
            }
        }
        self.hour(all, self.counted_from.values().copied().min())
    }

    fn hour(&self, minutes: Vec<Minute>, counted_from: Option<u64>) -> Hour {
        let journal = self.journal;
        let (Some(first), Some(current)) = (self.first, self.current) else {
            return Hour { minutes, unknown: MINUTES, from_journal: 0, journal };
        };
        let oldest = (current + 1).saturating_sub(MINUTES as u64);
        let place =
            |minute: u64| usize::try_from(minute.saturating_sub(oldest)).unwrap_or(MINUTES).min(MINUTES);
        let unknown = place(counted_from.map_or(first, |counted| counted.min(first)));
        // The minute of the first look has jobs from both.
        let from_journal = counted_from.map_or(0, |_| place(first + 1) - unknown);
        Hour { minutes, unknown, from_journal, journal }
    }
}

fn minute_of(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() / 60
}

fn no_minutes() -> VecDeque<Minute> {
    vec![Minute::default(); MINUTES].into()
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
        assert_eq!(throughput.of_queue("mails").unknown, MINUTES - 1);
        throughput.add(at(6_000 + 4 * 60), mails(9));
        let completed: Vec<u64> =
            throughput.of_queue("mails").minutes.iter().map(|minute| minute.completed).collect();
        assert_eq!(completed[MINUTES - 5..], [0, 2, 2, 2, 3]);
        throughput.add(at(6_000 + 200 * 60), mails(9));
        assert_eq!(throughput.of_all().minutes.iter().map(|minute| minute.completed).sum::<u64>(), 0);
        assert_eq!(throughput.of_all().unknown, 0);
    }

    #[test]
    fn note_of_unknown_minutes_says_whether_the_journal_is_being_read() {
        let mut throughput = Throughput::default();
        throughput.add(SystemTime::UNIX_EPOCH + Duration::from_secs(6_000), BTreeMap::new());
        assert!(throughput.of_all().note().ends_with("the journal is still being read"));
        throughput.fail_journal();
        assert!(throughput.of_all().note().ends_with("the journal cannot be read"));
    }

    #[test]
    fn only_the_last_hour_of_a_longer_pause_is_shown() {
        let at = |minutes: u64| SystemTime::UNIX_EPOCH + Duration::from_secs(60 * minutes);
        let mails = |completed| BTreeMap::from([("mails".to_owned(), Minute { completed, failed: 0 })]);
        let mut throughput = Throughput::default();
        let shown = |throughput: &Throughput| {
            throughput.of_all().minutes.iter().map(|minute| minute.completed).sum::<u64>()
        };
        // The first look of this page: other readers have counted for a week.
        throughput.add(at(100), mails(700_000));
        assert_eq!(shown(&throughput), 0);
        throughput.add(at(101), mails(700_005));
        assert_eq!(shown(&throughput), 5);
        // 14 hours without viewers.
        throughput.add(at(101 + 840), mails(700_005 + 8_400));
        assert_eq!(shown(&throughput), 600);
        assert!(throughput.of_all().minutes.iter().all(|minute| minute.completed == 10));
    }
}
