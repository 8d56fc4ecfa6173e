//! The journal of jobs that have ended.

use std::time::{Duration, SystemTime};

use jobqueue::__internals::{kept_text, open_journal, storage_time};
use jobqueue::Error;
use jobqueue::storage::{JournalEntry, JournalQuery};
use jobqueue_message::times::rfc3339;
use serde::{Deserialize, Serialize};

use super::Admin;

/// Selects jobs that have ended and meet all conditions that are set.
#[derive(Debug, Clone)]
#[must_use]
pub struct HistoryFilter {
    query: JournalQuery,
    younger_than: Option<Duration>,
    older_than: Option<Duration>,
}

impl Default for HistoryFilter {
    fn default() -> Self {
        let mut query = JournalQuery::default();
        query.limit = 100;
        Self { query, younger_than: None, older_than: None }
    }
}

impl HistoryFilter {
    /// Returns a filter that selects the 100 newest jobs.
    pub fn new() -> Self {
        Self::default()
    }

    /// The outcomes of ended jobs, as written in the journal.
    pub const OUTCOMES: [&str; 3] = ["completed", "completed_uncertain", "dead_lettered"];

    jobqueue_storage::setters! {
        /// Selects jobs of this queue.
        queue(queue some String) => query.queue;

        /// Selects jobs with this id.
        id(id some String) => query.id;

        /// Selects jobs with this key. Only its first 1,024 bytes count.
        key(key: impl Into<String>) => query.key = Some(kept_text(&key.into()).to_owned());

        /// Selects jobs of this kind. Only its first 1,024 bytes count.
        kind(kind: impl Into<String>) => query.kind = Some(kept_text(&kind.into()).to_owned());

        /// Selects jobs with this outcome, one of [`OUTCOMES`](Self::OUTCOMES).
        outcome(outcome some String) => query.outcome;

        /// Selects jobs whose error contains this text, matching case.
        error(text some String) => query.error;

        /// Selects jobs that ended at this time or later, by the worker's clock.
        since(time: SystemTime) => query.since;

        /// Selects jobs that ended at this time or earlier, by the worker's clock.
        until(time: SystemTime) => query.until;

        /// Selects jobs that ended at most this long before the search. The search has the storage's time,
        /// and the end that of its worker's clock.
        younger_than(age: Duration) => younger_than;

        /// Selects jobs that ended at least this long before the search. The search has the storage's time,
        /// and the end that of its worker's clock.
        older_than(age: Duration) => older_than;

        /// Selects at most this many jobs, at least one: the newest. Jobs that ended in the same microsecond
        /// as the last are selected too.
        limit(jobs: usize) => query.limit = jobs.max(1);
    }
}

/// A page of jobs that have ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HistoryPage {
    /// The jobs, the newest first.
    pub jobs: Vec<HistoryRecord>,
    /// True if these are all jobs that the filter selects.
    pub complete: bool,
    /// A time, as RFC 3339, if there may be more jobs: the limit was reached, or the search would have taken
    /// too long. All selected jobs that ended after it are here. To continue, search
    /// [until](HistoryFilter::until) this time; that search returns no job a second time.
    pub searched_to: Option<String>,
}

/// A job that has ended. Times are RFC 3339, by the worker's clock unless stated otherwise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct HistoryRecord {
    /// The queue.
    pub queue: String,
    /// The job's id.
    pub id: String,
    /// The sender.
    pub source: String,
    /// The kind: at most 1,024 bytes.
    pub kind: String,
    /// The key, if the job has one: at most 1,024 bytes.
    #[serde(default)]
    pub key: Option<String>,
    /// The outcome: `completed`, `completed_uncertain` or `dead_lettered`.
    pub outcome: String,
    /// The reason, for a dead letter.
    #[serde(default)]
    pub reason: Option<String>,
    /// The number of the last attempt.
    pub attempt: u32,
    /// The time of insertion, by the storage's clock.
    pub inserted: String,
    /// The time of the end.
    pub ended: String,
    /// The run time of the handler in the last attempt, in seconds.
    pub run_seconds: f64,
    /// The error with its causes: at most 500 characters.
    #[serde(default)]
    pub error: Option<String>,
    /// The name of the worker.
    pub worker: String,
    /// The trace: a W3C `traceparent`.
    #[serde(default)]
    pub trace: Option<String>,
}

impl From<JournalEntry> for HistoryRecord {
    fn from(entry: JournalEntry) -> Self {
        let optional = |text: Option<std::sync::Arc<str>>| text.map(|text| text.to_string());
        Self {
            queue: entry.queue.to_string(),
            id: entry.id.to_string(),
            source: entry.source.to_string(),
            kind: entry.kind.to_string(),
            key: optional(entry.key),
            outcome: entry.outcome.to_string(),
            reason: optional(entry.reason),
            attempt: entry.attempt,
            inserted: rfc3339(entry.inserted),
            ended: rfc3339(entry.ended),
            run_seconds: entry.ran.as_secs_f64(),
            error: optional(entry.error),
            worker: entry.worker.to_string(),
            trace: optional(entry.trace),
        }
    }
}

impl Admin {
    /// Searches the journals of workers that [keep a journal](jobqueue::WorkerBuilder::history). A job
    /// appears within 15 seconds of its end.
    ///
    /// On SQLite and PostgreSQL a search by id, key, outcome or error text reads an index. On other storages
    /// it lists the blobs of the journal, at one request for 5,000, and reads those that it cannot exclude.
    /// Blobs are excluded by time and outcome, and, for an id that this framework generated, by the time in
    /// the id, less an hour for clock skew. A blob has 4 MiB, some 12,000 jobs of a busy worker. After 5
    /// seconds or 500 blobs a search makes no further request, and returns how far it has come. Workers write
    /// their blobs at the same time, so a search with `until` begins with all blobs that contain jobs of that
    /// moment, which the search before may have read: it reads these, and then further blobs for 5 seconds or
    /// for as long as these took. On these storages a job that ended by a clock more than an hour ahead may
    /// be found only once that time has come. A filter with an age costs one more listing, for the storage's
    /// time.
    ///
    /// # Errors
    /// [`Storage`](jobqueue::ErrorKind::Storage) if the journals cannot be read.
    pub async fn history(&self, filter: &HistoryFilter) -> Result<HistoryPage, Error> {
        let query = self.query_of(filter).await?;
        let page = open_journal(self.storage.stores()).search(&query).await?;
        let searched_to = page.searched_to.map(super::text::exact_time);
        let jobs = page.entries.into_iter().map(HistoryRecord::from).collect();
        Ok(HistoryPage { jobs, complete: searched_to.is_none(), searched_to })
    }

    /// Returns the query of a filter, with times in place of ages.
    async fn query_of(&self, filter: &HistoryFilter) -> Result<JournalQuery, Error> {
        let mut query = filter.query.clone();
        if filter.younger_than.is_some() || filter.older_than.is_some() {
            let now = storage_time(&self.storage, None).await?.unwrap_or_else(|| self.clock().now());
            let ago = |age: Duration| now.checked_sub(age).unwrap_or(SystemTime::UNIX_EPOCH);
            query.since = query.since.max(filter.younger_than.map(ago));
            // Both are given if a search for an age is continued.
            query.until = query.until.into_iter().chain(filter.older_than.map(ago)).min();
        }
        Ok(query)
    }
}
