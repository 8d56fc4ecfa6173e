//! The jobs that ended, counted from the journal by queue and interval.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use jobqueue::__internals::{open_journal, storage_time};
use jobqueue::Error;
use jobqueue::storage::{JournalEntry, JournalQuery};
use serde::Serialize;
use tokio::time::Instant;

use super::Admin;
use super::text::{rfc3339, seconds};

/// The number of entries of the journal that one search returns.
const PAGE_SIZE: usize = 20_000;
/// The number of entries after which a count makes no further search.
const MAX_COUNTED: usize = 1_000_000;
/// The time after which a count makes no further search.
const MAX_COUNTING: Duration = Duration::from_secs(5);
const MAX_INTERVALS: usize = 1_000;

/// The jobs that ended in equal intervals up to now, by queue, as far as workers keep a journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct JournalCounts {
    /// The start of the first interval: a multiple of the interval since 1970, in UTC.
    #[serde(serialize_with = "rfc3339")]
    pub from: SystemTime,
    /// The length of an interval.
    #[serde(rename = "interval_seconds", serialize_with = "seconds")]
    pub interval: Duration,
    /// The number of intervals. The last one has not ended.
    pub intervals: usize,
    /// The counts of each interval by queue. A queue without an entry is missing: its counts are unknown,
    /// because its workers may keep no journal. The intervals before the first one in which a job of any
    /// queue ended are `None`, because the journal may have begun then, or may keep nothing older; so are
    /// the first ones if the journal has too many entries to count them all. For the same reasons, the first
    /// interval with counts may be counted in part.
    pub queues: BTreeMap<String, Vec<Option<EndedJobs>>>,
}

/// The jobs of a queue that ended in an interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EndedJobs {
    /// The number of jobs that were completed.
    pub completed: u64,
    /// The number of jobs that were dead-lettered.
    pub dead_lettered: u64,
    /// The number of these that were cancelled.
    pub cancelled: u64,
    /// The least length of the queue when the interval began: the number of jobs that were in the queue then
    /// and have ended since. Jobs that are still in the queue are not counted.
    pub depth: u64,
}

impl Admin {
    /// Counts the jobs that ended in the last `intervals` intervals, at most 1,000, from the
    /// [journal](Self::history). `interval` is in whole seconds, at least one. Attempts that were retried are
    /// not in the journal.
    ///
    /// Reads up to a million entries. After 5 seconds it makes no further search, and the intervals that were
    /// not reached are `None`. On SQLite and PostgreSQL this reads the rows of that time; on other storages
    /// it lists and reads the blobs of that time, each of up to 4 MiB, and for each further 20,000 entries
    /// some of them again.
    ///
    /// # Errors
    /// [`Storage`](jobqueue::ErrorKind::Storage) if the journals cannot be read.
    pub async fn count_ended(&self, intervals: usize, interval: Duration) -> Result<JournalCounts, Error> {
        let now = storage_time(&self.storage, None).await?.unwrap_or_else(|| self.clock().now());
        let mut counts = JournalCounts::until(now, intervals, interval);
        let (journal, began, mut read) = (open_journal(self.storage.stores()), Instant::now(), 0);
        let mut query = JournalQuery::default();
        query.since = Some(counts.from);
        query.limit = PAGE_SIZE;
        loop {
            let page = journal.search(&query).await?;
            read += page.entries.len();
            page.entries.iter().for_each(|entry| counts.add(entry));
            match page.searched_to {
                Some(searched_to) if read < MAX_COUNTED && began.elapsed() < MAX_COUNTING => {
                    query.until = Some(searched_to);
                }
                searched_to => {
                    counts.forget_until(searched_to);
                    return Ok(counts);
                }
            }
        }
    }
}

impl JournalCounts {
    fn until(now: SystemTime, intervals: usize, interval: Duration) -> Self {
        let (intervals, seconds) = (intervals.clamp(1, MAX_INTERVALS), interval.as_secs().max(1));
        let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let before = seconds.saturating_mul(intervals as u64 - 1);
        let from = (now / seconds * seconds).saturating_sub(before);
        Self {
            from: SystemTime::UNIX_EPOCH + Duration::from_secs(from),
            interval: Duration::from_secs(seconds),
            intervals,
            queues: BTreeMap::new(),
        }
    }

    /// Returns the number of whole intervals from the start to a time, and whether more time remains.
    fn passed(&self, time: SystemTime) -> (usize, bool) {
        let passed = time.duration_since(self.from).unwrap_or_default();
        let whole = passed.as_secs() / self.interval.as_secs();
        let has_rest = passed > Duration::from_secs(whole * self.interval.as_secs());
        (usize::try_from(whole).unwrap_or(usize::MAX), has_rest)
    }

    fn add(&mut self, entry: &JournalEntry) {
        // The clock of a worker may be ahead.
        let last = self.passed(entry.ended).0.min(self.intervals - 1);
        let (whole, has_rest) = self.passed(entry.inserted);
        let first = whole.saturating_add(usize::from(has_rest));
        if !self.queues.contains_key(&*entry.queue) {
            self.queues.insert(entry.queue.to_string(), vec![Some(EndedJobs::default()); self.intervals]);
        }
        let Some(counts) = self.queues.get_mut(&*entry.queue) else { return };
        if let Some(Some(ended)) = counts.get_mut(last) {
            if &*entry.outcome == "dead_lettered" {
                ended.dead_lettered += 1;
                ended.cancelled += u64::from(entry.reason.as_deref() == Some("cancelled"));
            } else {
                ended.completed += 1;
            }
        }
        for present in counts.iter_mut().take(last + 1).skip(first).flatten() {
            present.depth += 1;
        }
    }

    /// Makes the intervals unknown of which entries up to `searched_to` may be missing, and those before the
    /// first ended job.
    fn forget_until(&mut self, searched_to: Option<SystemTime>) {
        let has_ended = |count: &Option<EndedJobs>| {
            count.is_some_and(|ended| ended.completed > 0 || ended.dead_lettered > 0)
        };
        let first = self.queues.values().filter_map(|counts| counts.iter().position(has_ended)).min();
        let searched_to = searched_to.filter(|time| *time >= self.from);
        let unsearched = searched_to.map_or(0, |time| self.passed(time).0.saturating_add(1));
        let unknown = unsearched.max(first.unwrap_or_default());
        for counts in self.queues.values_mut() {
            counts.iter_mut().take(unknown).for_each(|count| *count = None);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3_600);

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    fn entry(inserted: u64, ended: u64) -> JournalEntry {
        let text = || Arc::from("mails");
        JournalEntry {
            ended: at(ended),
            number: 1,
            queue: text(),
            id: text(),
            source: text(),
            kind: text(),
            key: None,
            outcome: Arc::from(JournalEntry::COMPLETED),
            reason: None,
            attempt: 1,
            inserted: at(inserted),
            ran: Duration::ZERO,
            error: None,
            worker: text(),
            trace: None,
        }
    }

    fn depths(counts: &JournalCounts) -> Vec<Option<u64>> {
        counts.queues["mails"].iter().map(|count| count.map(|count| count.depth)).collect()
    }

    #[test]
    fn job_counts_where_it_ended_and_where_it_waited() {
        // The hours begin at 7,200, 10,800, 14,400 and 18,000 seconds.
        let mut counts = JournalCounts::until(at(18_060), 4, HOUR);
        assert_eq!(counts.from, at(7_200));
        counts.add(&entry(100, 14_500));
        counts.add(&entry(10_800, 14_600));
        counts.add(&entry(10_801, 10_802));
        assert_eq!(depths(&counts), [Some(1), Some(2), Some(2), Some(0)]);
        let completed: Vec<_> = counts.queues["mails"].iter().map(|count| count.unwrap().completed).collect();
        assert_eq!(completed, [0, 1, 2, 0]);
        // By a clock that is ahead.
        counts.add(&entry(18_050, 90_000));
        assert_eq!(counts.queues["mails"][3].unwrap().completed, 1);
    }

    #[test]
    fn interval_that_was_not_searched_to_its_start_is_unknown() {
        let mut counts = JournalCounts::until(at(18_060), 4, HOUR);
        counts.add(&entry(100, 14_500));
        counts.add(&entry(100, 7_300));
        counts.forget_until(Some(at(7_199)));
        assert!(depths(&counts).iter().all(Option::is_some));
        counts.forget_until(Some(at(10_800)));
        assert_eq!(depths(&counts), [None, None, Some(1), Some(0)]);
    }

    // Hours before the journal began were counted as hours without a job.
    #[test]
    fn intervals_before_the_first_ended_job_are_unknown() {
        let mut counts = JournalCounts::until(at(18_060), 4, HOUR);
        counts.add(&entry(100, 14_500));
        counts.forget_until(None);
        assert_eq!(depths(&counts), [None, None, Some(1), Some(0)]);
    }

    #[test]
    fn cancelled_jobs_are_told_from_other_dead_letters() {
        let mut counts = JournalCounts::until(at(18_060), 1, HOUR);
        for reason in ["cancelled", "rejected"] {
            let (outcome, reason) = (Arc::from("dead_lettered"), Some(Arc::from(reason)));
            counts.add(&JournalEntry { outcome, reason, ..entry(18_010, 18_020) });
        }
        let count = counts.queues["mails"][0].unwrap();
        assert_eq!(count.dead_lettered, 2);
        assert_eq!(count.cancelled, 1);
        assert_eq!(count.completed, 0);
    }
}
