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

    /// Selects at most so many: the newest.
    pub fn limit(mut self, jobs: usize) -> Self {
        self.query.limit = jobs;
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
}

impl Admin {
    /// Searches the journals of workers that [keep one](crate::WorkerBuilder::history). A job appears within 15 seconds of its end. Costs
    /// one request to list 5,000 blobs, and one for each blob that is read, at most 500; a blob has about 1,400 jobs, or those of one
    /// hour. A range of time makes a search cheap.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) when the journals cannot be read.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn history(&self, filter: &HistoryFilter) -> Result<HistoryPage, Error> {
        let (jobs, complete) = search(&self.storage, &filter.query).await?;
        Ok(HistoryPage { jobs, complete })
    }
}
