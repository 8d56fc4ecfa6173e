//! The journal of ended jobs, as a power of storages that are databases.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use tokio::time::Instant;

use super::StoreError;

/// The time after which a search begins no further request, and returns the entries found so far.
pub const MAX_JOURNAL_SEARCH: Duration = Duration::from_secs(5);

/// A journal of ended jobs that the storage itself keeps, usually in a table with indexes.
///
/// The power is optional: without it, the framework keeps the journal in the storage's blobs.
///
/// # Contract
/// - Every later search finds the entries whose `append` was acknowledged, until they expire.
/// - Two entries with the same `ended` and `number` are one entry, so that an append can be repeated after a
///   lost answer.
/// - The times of entries and queries are whole microseconds
///   ([`whole_micros`](super::rules::micros::whole_micros)); the storage keeps them exactly.
#[async_trait]
pub trait JournalStore: fmt::Debug + Send + Sync + 'static {
    /// Adds entries.
    ///
    /// # Errors
    /// The kinds that any storage can return. Some of the entries may have been added.
    async fn append(&self, entries: Arc<[JournalEntry]>) -> Result<(), StoreError>;

    /// Returns the newest entries that the query selects, the newest first. After [`MAX_JOURNAL_SEARCH`] the
    /// search begins no further request, once at least one moment is searched.
    ///
    /// # Errors
    /// The kinds that any storage can return.
    async fn search(&self, query: &JournalQuery) -> Result<JournalPage, StoreError>;

    /// Removes all entries whose jobs ended longer ago than `kept`, by the storage's clock, since the
    /// caller's clock may be wrong. Where the storage uses the caller's clock, as SQLite does, a clock that
    /// stays wrong for more than a minute is believed.
    ///
    /// # Errors
    /// The kinds that any storage can return. Some of the entries may have been removed.
    async fn expire(&self, kept: Duration) -> Result<(), StoreError>;
}

/// A job that has ended. A storage must keep all fields: the struct is exhaustive, so that the code of a
/// storage does not compile until it treats a new field.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(clippy::exhaustive_structs)]
pub struct JournalEntry {
    /// The time at which the job ended, by the clock of its worker.
    pub ended: SystemTime,
    /// A random number that distinguishes jobs that ended at the same time.
    pub number: u64,
    /// The queue.
    pub queue: Arc<str>,
    /// The job's id.
    pub id: Arc<str>,
    /// The sender.
    pub source: Arc<str>,
    /// The kind.
    pub kind: Arc<str>,
    /// The key, if the job has one.
    pub key: Option<Arc<str>>,
    /// The name of the outcome. Nearly all entries have [`COMPLETED`](Self::COMPLETED).
    pub outcome: Arc<str>,
    /// The reason of a dead letter.
    pub reason: Option<Arc<str>>,
    /// The number of the last attempt.
    pub attempt: u32,
    /// The time of insertion, by the storage's clock.
    pub inserted: SystemTime,
    /// The time for which the handler ran in the last attempt.
    pub ran: Duration,
    /// The error with its causes, at most some 500 characters.
    pub error: Option<Arc<str>>,
    /// The name of the worker.
    pub worker: Arc<str>,
    /// The trace: a W3C `traceparent`.
    pub trace: Option<Arc<str>>,
}

impl JournalEntry {
    /// The outcome of a job that was completed.
    pub const COMPLETED: &'static str = "completed";
}

/// A search of the journal. It selects the entries that match every field that is set.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct JournalQuery {
    /// The queue.
    pub queue: Option<String>,
    /// The job's id.
    pub id: Option<String>,
    /// The key.
    pub key: Option<String>,
    /// The kind.
    pub kind: Option<String>,
    /// The name of the outcome.
    pub outcome: Option<String>,
    /// A part of the error's text.
    pub error: Option<String>,
    /// The earliest time of the end.
    pub since: Option<SystemTime>,
    /// The latest time of the end.
    pub until: Option<SystemTime>,
    /// The number of entries after which the page ends. The page also has the entries that ended at the same
    /// time as the last one.
    pub limit: usize,
}

impl JournalQuery {
    /// Searches in slices, each of which reads a limited number of rows, until the page is full, no rows are
    /// left or [`MAX_JOURNAL_SEARCH`] has passed.
    ///
    /// # Errors
    /// The first error of a slice.
    pub async fn search_by_slices<F>(
        &self,
        slice: impl Fn(Self) -> F + Send + Sync,
    ) -> Result<JournalPage, StoreError>
    where
        F: Future<Output = Result<JournalPage, StoreError>> + Send,
    {
        let began = Instant::now();
        let (mut entries, mut rest) = (Vec::new(), self.clone());
        loop {
            rest.limit = self.limit.saturating_sub(entries.len());
            let found = slice(rest.clone()).await?;
            entries.extend(found.entries);
            let is_over = entries.len() >= self.limit || began.elapsed() >= MAX_JOURNAL_SEARCH;
            if found.searched_to.is_none() || is_over {
                return Ok(JournalPage::new(entries).with_searched_to(found.searched_to));
            }
            rest.until = found.searched_to;
        }
    }

    /// Returns whether the query selects an entry.
    pub fn selects(&self, entry: &JournalEntry) -> bool {
        let is = |wanted: &Option<String>, found: Option<&Arc<str>>| {
            wanted.as_deref().is_none_or(|wanted| found.is_some_and(|found| **found == *wanted))
        };
        let contains = |wanted: &Option<String>, found: Option<&Arc<str>>| {
            wanted.as_deref().is_none_or(|wanted| found.is_some_and(|found| found.contains(wanted)))
        };
        is(&self.id, Some(&entry.id))
            && self.since.is_none_or(|since| entry.ended >= since)
            && self.until.is_none_or(|until| entry.ended <= until)
            && is(&self.kind, Some(&entry.kind))
            && is(&self.queue, Some(&entry.queue))
            && is(&self.outcome, Some(&entry.outcome))
            && is(&self.key, entry.key.as_ref())
            && contains(&self.error, entry.error.as_ref())
    }

    /// Returns whether the query selects only entries with an outcome other than
    /// [`COMPLETED`](JournalEntry::COMPLETED), or with an error, which completed jobs do not have.
    pub fn selects_only_failures(&self) -> bool {
        self.error.is_some()
            || self.outcome.as_deref().is_some_and(|outcome| outcome != JournalEntry::COMPLETED)
    }
}

/// A page of the journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct JournalPage {
    /// The entries, the newest first.
    pub entries: Vec<JournalEntry>,
    /// The time from which to search backwards for further entries; `None` if there are none. No entry of
    /// this page ended at this time or earlier.
    pub searched_to: Option<SystemTime>,
}

impl JournalPage {
    /// Returns the last page.
    pub fn new(entries: Vec<JournalEntry>) -> Self {
        Self { entries, searched_to: None }
    }

    setters! {
        /// Sets the time from which to search backwards for further entries.
        with_searched_to(searched_to from Option<SystemTime>);
    }
}
