//! The jobs that have ended, as workers with a journal tell.

use std::time::SystemTime;

use serde::Serialize;

use super::Admin;
use crate::error::Error;
use crate::history::{HistoryRecord, Query, search};

/// The ended jobs that are meant: those for which all that is set here holds.
#[derive(Debug, Clone)]
#[must_use]
pub struct HistoryFilter {
    query: Query,
}

impl Default for HistoryFilter {
    fn default() -> Self {
        Self { query: Query { limit: 100, ..Query::default() } }
    }
}

impl HistoryFilter {
    /// Returns a filter that selects the newest 100.
    pub fn new() -> Self {
        Self::default()
    }

    /// Selects jobs of this queue.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.query.queue = Some(queue.into());
        self
    }

    /// Selects jobs with this id.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.query.id = Some(id.into());
        self
    }

    /// Selects jobs of this kind.
    pub fn kind(mut self, kind: impl Into<String>) -> Self {
        self.query.kind = Some(kind.into());
        self
    }

    /// Selects jobs with this outcome: `completed`, `completed_uncertain` or `dead_lettered`.
    pub fn outcome(mut self, outcome: impl Into<String>) -> Self {
        self.query.outcome = Some(outcome.into());
        self
    }

    /// Selects jobs that ended at this time or later.
    pub fn since(mut self, time: SystemTime) -> Self {
        self.query.since = Some(time);
        self
    }

    /// Selects jobs that ended at this time or earlier.
    pub fn until(mut self, time: SystemTime) -> Self {
        self.query.until = Some(time);
        self
    }

    /// Selects so many at most, at least one: the newest. Those that ended in the same microsecond as the last are selected, too.
    pub fn limit(mut self, jobs: usize) -> Self {
        self.query.limit = jobs.max(1);
        self
    }
}

/// Ended jobs that were found.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct HistoryPage {
    /// The jobs, the newest first.
    pub jobs: Vec<HistoryRecord>,
    /// True if these are all that the filter selects.
    pub complete: bool,
    /// A time, as RFC 3339, if there may be more jobs: because the limit was reached, or because the search would have taken too long.
    /// All jobs that ended after it are here. To go on, search [until](HistoryFilter::until) this time: that finds no job again, unless
    /// the search is for an [id](HistoryFilter::id), which shows what it has found beyond this time as well.
    pub searched_to: Option<String>,
}

impl Admin {
    /// Searches the journals of workers that [keep one](crate::WorkerBuilder::history). A job appears within 15 seconds of its end.
    ///
    /// Costs one request to list 2,500 blobs of the journal, which have about 18,000 jobs each on a busy worker. A search by id, kind,
    /// queue or outcome then reads the summary of each, which says what it can hold, and the few that can hold such a job. A range of
    /// time makes it cheaper, and so does an id that the framework has made, since it tells the time of sending: blobs that were ended a
    /// day before are left out.
    /// A search ends after 5 seconds or 1,000 blobs, and tells how far it has come. If the next search could not come further from there,
    /// because more blobs hold jobs of that moment, it goes on longer.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) when the journals cannot be read.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn history(&self, filter: &HistoryFilter) -> Result<HistoryPage, Error> {
        let found = search(&self.storage, &filter.query).await?;
        let searched_to = found.until.map(super::text::exact_time);
        Ok(HistoryPage { jobs: found.jobs, complete: found.until.is_none(), searched_to })
    }
}
