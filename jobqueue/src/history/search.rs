//! The state of a search in the journal's blobs. Knows entries and their times, and nothing of blobs.

use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;
use uuid::Uuid;

use crate::storage::rules::micros::{from_micros, to_micros};
use crate::storage::{JournalEntry, JournalPage, JournalQuery, MAX_JOURNAL_SEARCH};

/// The time by which clocks may differ: a job may have ended this long before the creation time in its id.
pub(super) const JOURNAL_CLOCK_SKEW: Duration = Duration::from_secs(3_600);
/// The number of segments after which a search ends. Segments that the search before may have read do not
/// count.
const MAX_SEGMENTS: usize = 500;

/// Returns the range of end times that a query selects, in microseconds since 1970.
pub(super) fn range(query: &JournalQuery) -> RangeInclusive<i64> {
    let made =
        query.id.as_deref().and_then(creation_time).and_then(|made| made.checked_sub(JOURNAL_CLOCK_SKEW));
    let since = query.since.max(made);
    since.map_or(i64::MIN, to_micros)..=query.until.map_or(i64::MAX, to_micros)
}

/// Returns the creation time in an id, if the id is a UUID of version 7.
fn creation_time(id: &str) -> Option<SystemTime> {
    let uuid = Uuid::try_parse(id).ok().filter(|uuid| uuid.get_version_num() == 7)?;
    let (seconds, nanos) = uuid.get_timestamp()?.to_unix();
    SystemTime::UNIX_EPOCH.checked_add(Duration::new(seconds, nanos))
}

/// The entries that a search has found so far, and the time back to which it has searched.
pub(super) struct Search<'a> {
    query: &'a JournalQuery,
    /// The newest entries, newest first: up to the query's limit, and all entries with the same end time as
    /// the last of them.
    entries: Vec<JournalEntry>,
    /// True if older entries were found and left out.
    is_cut: bool,
    /// The time just before the first end of the newest segment that could not be read.
    unread: Option<i64>,
    /// The number of segments read.
    read: usize,
    began: Instant,
    /// The search when it came to the first segment whose jobs all ended before the query's `until`.
    further: Option<ReadAgain>,
}

/// The cost of the segments that contain the query's `until`. The search that is continued may have read the
/// same segments.
#[derive(Debug, Clone, Copy)]
struct ReadAgain {
    segments: usize,
    time: Duration,
}

impl<'a> Search<'a> {
    pub(super) fn new(query: &'a JournalQuery) -> Self {
        let began = Instant::now();
        Self { query, entries: Vec::new(), is_cut: false, unread: None, read: 0, began, further: None }
    }

    /// Returns whether the search stops before a segment whose last job ended at `last`.
    ///
    /// Segments overlap, so that a search begins with all segments that contain the query's `until`. These
    /// are read however many they are. Then the search reads at least as many segments that end earlier, or
    /// for at least as long, unless the page is full: otherwise each search would come one segment further.
    pub(super) fn is_over(&mut self, last: i64) -> bool {
        if self.oldest().is_some_and(|oldest| oldest > last) {
            return true;
        }
        if self.query.until.is_some_and(|until| to_micros(until) <= last) {
            return false;
        }
        let (read, time) = (self.read, self.began.elapsed());
        let again = *self.further.get_or_insert(ReadAgain { segments: read, time });
        read - again.segments >= again.segments.max(MAX_SEGMENTS)
            || time.saturating_sub(again.time) >= again.time.max(MAX_JOURNAL_SEARCH)
    }

    /// Returns the end time of the last entry within the query's limit, if the limit is reached.
    fn oldest(&self) -> Option<i64> {
        self.entries.get(self.query.limit.saturating_sub(1)).map(|entry| to_micros(entry.ended))
    }

    pub(super) fn add(&mut self, entries: Vec<JournalEntry>) {
        self.read += 1;
        self.entries.extend(entries);
        self.entries.sort_by_key(|entry| std::cmp::Reverse((entry.ended, entry.number)));
        // A repeated write may be stored under another name.
        self.entries.dedup_by_key(|entry| (entry.ended, entry.number));
        if let Some(oldest) = self.oldest() {
            let wanted = self.entries.partition_point(|entry| to_micros(entry.ended) >= oldest);
            self.is_cut |= wanted < self.entries.len();
            self.entries.truncate(wanted);
        }
    }

    /// Ends the page at an unreadable segment whose first job ended at `first`. The next search continues
    /// before that time.
    pub(super) fn skip(&mut self, first: i64) {
        self.read += 1;
        self.unread = self.unread.max(Some(first.saturating_sub(1)));
    }

    /// Returns the page of a search that has not read entries that ended at or before `unread`.
    pub(super) fn page(mut self, unread: Option<i64>) -> JournalPage {
        let cut = self.oldest().filter(|_| self.is_cut).map(|oldest| oldest.saturating_sub(1));
        let searched_to = cut.max(unread).max(self.unread);
        if let Some(searched_to) = searched_to {
            self.entries.retain(|entry| to_micros(entry.ended) > searched_to);
        }
        JournalPage::new(self.entries).with_searched_to(searched_to.map(from_micros))
    }
}
