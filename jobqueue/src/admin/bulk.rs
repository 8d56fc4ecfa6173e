//! Redriving and purging all dead letters that a filter selects.

use serde::Serialize;
use tokio_util::sync::CancellationToken;

use super::dead_letters::DeadLetterFilter;
use super::{Action, Admin};
use crate::dead_letters::{DeadLetter, PassAction, RedriveReport};
use crate::error::Error;

/// The progress of a redrive or a purge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BulkProgress {
    /// The number of dead letters that were dealt with.
    pub done: u64,
    /// About how many dead letters there were when it began, those included that the filter does not select.
    pub total: u64,
}

/// The result of a redrive or a purge.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[must_use]
#[non_exhaustive]
pub struct BulkReport {
    /// True for a dry run: the jobs are the ones that would have been changed.
    pub dry_run: bool,
    /// The number of jobs that were put back, or whose dead letters were deleted.
    pub count: u64,
    /// The ids of these jobs.
    pub jobs: Vec<String>,
    /// The dead letters that were selected and with which it failed.
    pub skipped: Vec<SkippedJob>,
    /// The number of dead letters that were looked at and left.
    pub left: u64,
    /// The cause, if it ended before it had looked at all.
    pub stopped: Option<String>,
}

/// A dead letter that was selected and not dealt with.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SkippedJob {
    /// The id of the job.
    pub id: String,
    /// The error with its causes, in one line.
    pub error: String,
    /// True if the job was put back, or perhaps was: then it is in both queues.
    pub maybe_moved: bool,
}

/// A redrive or a purge that is put together; [`run`](Self::run) does it. Begun by [`Admin::redrive`] and [`Admin::purge`].
#[must_use = "nothing happens before `run`"]
pub struct Bulk<'a> {
    admin: &'a Admin,
    queue: String,
    purges: bool,
    filter: DeadLetterFilter,
    limit: Option<u64>,
    per_second: Option<u32>,
    dry_run: bool,
    stop: CancellationToken,
    progress: Box<dyn FnMut(BulkProgress) + Send + 'a>,
}

impl Admin {
    /// Begins to put dead letters back into their queue: their jobs get all their attempts again. The rules are those of
    /// [`DeadLetters::redrive`](crate::dead_letters::DeadLetters::redrive).
    pub fn redrive(&self, queue: &str) -> Bulk<'_> {
        self.bulk(queue, false)
    }

    /// Begins to delete dead letters with their payloads. There is no way back. The rules are those of
    /// [`DeadLetters::purge`](crate::dead_letters::DeadLetters::purge).
    pub fn purge(&self, queue: &str) -> Bulk<'_> {
        self.bulk(queue, true)
    }

    fn bulk(&self, queue: &str, purges: bool) -> Bulk<'_> {
        Bulk {
            admin: self,
            queue: queue.to_owned(),
            purges,
            filter: DeadLetterFilter::new(),
            limit: None,
            per_second: None,
            dry_run: false,
            stop: CancellationToken::new(),
            progress: Box::new(|_| {}),
        }
    }
}

impl<'a> Bulk<'a> {
    /// Restricts the operation to the filter's selection. The default is all dead letters.
    pub fn filter(mut self, filter: DeadLetterFilter) -> Self {
        self.filter = filter;
        self
    }

    /// Takes at most this many.
    pub fn limit(mut self, jobs: u64) -> Self {
        self.limit = Some(jobs);
        self
    }

    /// Takes at most this many a second.
    pub fn per_second(mut self, rate: u32) -> Self {
        self.per_second = Some(rate);
        self
    }

    /// Reports the changes without making them. It receives all dead letters, which are invisible to others meanwhile,
    /// and requires [`Action::Inspect`] instead of the action itself.
    pub fn dry_run(mut self, dry: bool) -> Self {
        self.dry_run = dry;
        self
    }

    /// Ends before the next dead letter once `token` fires. What was held then becomes visible again at once, which it does not if the
    /// future is dropped.
    pub fn stop_when(mut self, token: CancellationToken) -> Self {
        self.stop = token;
        self
    }

    /// Calls `listener` after each dead letter.
    pub fn on_progress(mut self, listener: impl FnMut(BulkProgress) + Send + 'a) -> Self {
        self.progress = Box::new(listener);
        self
    }

    /// Does it.
    ///
    /// # Errors
    /// [`Forbidden`](crate::ErrorKind::Forbidden); [`NotFound`](crate::ErrorKind::NotFound) if there is no such queue;
    /// [`Storage`](crate::ErrorKind::Storage) when the dead letters cannot be read at all: nothing was changed. What fails later is in
    /// the report.
    ///
    /// # Cancel safety
    /// If the future is dropped, dead letters that it held come back after at most 10 minutes; the one under way may be in
    /// both queues.
    pub async fn run(self) -> Result<BulkReport, Error> {
        let (admin, subject) = (self.admin, format!("dead letters of {}", self.queue));
        let action = match (self.dry_run, self.purges) {
            (true, _) => Action::Inspect,
            (false, true) => Action::Purge,
            (false, false) => Action::Redrive,
        };
        let verb = if self.purges { "deleted" } else { "put back" };
        let would = if self.dry_run { "would be " } else { "" };
        let summary =
            |report: &BulkReport| format!("{} {would}{verb}, {} skipped", report.count, report.skipped.len());
        admin.act(action, subject, self.pass(), summary).await
    }

    async fn pass(mut self) -> Result<BulkReport, Error> {
        let letters = self.admin.dead_letter_queue(&self.queue).await?;
        let total = letters.count().await?;
        let mut options = self.admin.selecting(&self.filter).stop(self.stop.clone());
        if let Some(limit) = self.limit {
            options = options.limit(limit);
        }
        if let Some(rate) = self.per_second {
            options = options.per_second(rate);
        }
        let action = match (self.dry_run, self.purges) {
            (true, _) => PassAction::Tell,
            (false, true) => PassAction::Delete,
            (false, false) => PassAction::PutBack,
        };
        let mut done = 0;
        let mut tell = |_: &DeadLetter| {
            done += 1;
            (self.progress)(BulkProgress { done, total: total.max(done) });
        };
        let report = letters.pass(&options, action, &mut tell).await?;
        let stopped = self.stop.is_cancelled().then(|| "it was stopped by a request".to_owned());
        Ok(BulkReport::of(report, self.dry_run, stopped))
    }
}

impl BulkReport {
    fn of(report: RedriveReport, dry_run: bool, stopped: Option<String>) -> Self {
        let RedriveReport { moved, skipped, left, stopped: failed } = report;
        let skipped = skipped.into_iter().map(|skipped| SkippedJob {
            id: skipped.id,
            error: skipped.why,
            maybe_moved: skipped.maybe_moved,
        });
        let (count, skipped) = (moved.len() as u64, skipped.collect());
        Self { dry_run, count, jobs: moved, skipped, left, stopped: failed.or(stopped) }
    }
}

impl std::fmt::Debug for Bulk<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bulk")
            .field("queue", &self.queue)
            .field("purges", &self.purges)
            .field("filter", &self.filter)
            .field("dry_run", &self.dry_run)
            .finish_non_exhaustive()
    }
}
