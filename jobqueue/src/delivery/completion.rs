//! Completes jobs: deletes the messages of jobs whose handler has finished, alone or together with others, and remembers
//! jobs of which another message may be delivered.

use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use tokio::time::Instant;

use super::disposition::DeliveryReport;
use super::durable;
use super::executor::{Executor, panic_text};
use super::leased_job::{HeldJob, LeasedJob};
use crate::error::Error;
use crate::job::JobInfo;
use crate::job::outcome::{Outcome, chain};
use crate::lease::{LeaseError, delete_all};
use crate::trace::{OpenSpan, Step};

/// The time for which a completion is recorded at least, if the lease has ended: a message whose deletion got no answer may be delivered.
const LEAST_PATIENCE: Duration = Duration::from_secs(30);

impl Executor {
    /// Returns whether the message is deleted together with others and not by its own delivery. A message whose lease
    /// has expired is deleted at once, before any worker can receive it again, this one included.
    pub(super) fn deletes_in_batch(&self, leased_job: &LeasedJob) -> bool {
        self.core.store().guarantees().commits_together
            && leased_job.lease.loss().is_none()
            && !leased_job.has_blobs()
    }

    /// Deletes the message of a job that is done.
    pub(super) async fn complete(&self, leased_job: &LeasedJob) -> Result<Outcome, Error> {
        let has_blobs = leased_job.has_blobs();
        let deleted = leased_job.complete().await;
        if has_blobs && deleted.is_ok() {
            // Another message may share the blobs, for instance because a producer repeated a put: it cannot run without
            // them.
            self.remember(leased_job);
            Box::pin(self.record(leased_job)).await;
        }
        self.completed(leased_job, deleted).await
    }

    /// Deletes the messages of reports that are [undeleted](DeliveryReport::undeleted) by one request, and completes the
    /// reports. One whose message cannot be deleted with the others stays undeleted, and is to be [deleted alone](Self::delete_alone). If the
    /// future is dropped, the remaining messages become visible again. It does not panic: if application code does, which
    /// messages are deleted is unknown.
    pub(crate) async fn delete_together(&self, reports: &mut [DeliveryReport]) {
        let leased_jobs = undeleted(reports);
        let leases: Vec<_> = leased_jobs.iter().map(|leased_job| Arc::clone(&leased_job.lease)).collect();
        self.complete_reports(reports, &leased_jobs, delete_all(&leases)).await;
    }

    /// Deletes the message of one undeleted report by requests of its own, for as long as its lease, and completes the report.
    pub(crate) async fn delete_alone(&self, report: &mut DeliveryReport) {
        let reports = std::slice::from_mut(report);
        let leased_jobs = undeleted(reports);
        let deletion = join_all(leased_jobs.iter().map(|leased_job| leased_job.complete().map(Some)));
        self.complete_reports(reports, &leased_jobs, deletion).await;
    }

    async fn complete_reports(
        &self,
        reports: &mut [DeliveryReport],
        leased_jobs: &[Arc<LeasedJob>],
        deletion: impl Future<Output = Vec<Option<Result<(), LeaseError>>>>,
    ) {
        let completing = self.settle_reports(reports, leased_jobs, deletion);
        let Err(panic) = AssertUnwindSafe(completing).catch_unwind().await else { return };
        let text = format!("a panic outside the handler: {}", panic_text(&*panic));
        for report in reports {
            if let Some(leased_job) = report.undeleted.take().as_ref().and_then(HeldJob::get) {
                self.remember(&leased_job);
                report.outcome = Outcome::CompletedUncertain;
                report.error.get_or_insert_with(|| text.clone());
            }
        }
    }

    async fn settle_reports(
        &self,
        reports: &mut [DeliveryReport],
        leased_jobs: &[Arc<LeasedJob>],
        deletion: impl Future<Output = Vec<Option<Result<(), LeaseError>>>>,
    ) {
        let mut span = self.deletion_span(reports, leased_jobs);
        let settling = async { self.outcomes(leased_jobs, deletion.await).await };
        let settled = span.run(pin!(settling)).await;
        for ((report, leased_job), settled) in reports.iter_mut().zip(leased_jobs).zip(settled) {
            if let Some(settled) = settled {
                report.settled(leased_job, settled);
                report.undeleted = None;
            }
        }
        span.end(Some(Outcome::Completed.as_str()), reports.iter().find_map(|report| report.settle_error));
    }

    /// Starts the tracer's span of a deletion.
    fn deletion_span(&self, reports: &[DeliveryReport], leased_jobs: &[Arc<LeasedJob>]) -> OpenSpan {
        if !self.state.events.trace() {
            return OpenSpan::none();
        }
        let contexts = reports.iter().filter_map(|report| report.job.as_deref()).map(|job| job.trace);
        let contexts: Vec<_> = contexts.collect();
        match leased_jobs {
            [alone] => alone.settle_span(contexts.first().copied()),
            _ => self.state.events.span(|| Step::Settle {
                queue: &self.core.name,
                id: None,
                messages: contexts.len(),
                process: None,
                messages_of: &contexts,
            }),
        }
    }

    /// Returns the jobs' outcomes for these answers to the deletions of their messages. None of them has blobs.
    async fn outcomes(
        &self,
        leased_jobs: &[Arc<LeasedJob>],
        deleted: Vec<Option<Result<(), LeaseError>>>,
    ) -> Vec<Option<Result<Outcome, Error>>> {
        let mut outcomes = Vec::with_capacity(deleted.len());
        let mut doubtful = Vec::new();
        for (index, (leased_job, deleted)) in leased_jobs.iter().zip(deleted).enumerate() {
            outcomes.push(deleted.as_ref().map(|_| Ok(Outcome::Completed)));
            if let Some(failed @ Err(_)) = deleted {
                doubtful.push(async move { (index, self.completed(leased_job, failed).await) });
            }
        }
        for (index, outcome) in join_all(doubtful).await {
            outcomes[index] = Some(outcome);
        }
        outcomes
    }

    /// Returns the job's outcome for this answer to the deletion.
    async fn completed(
        &self,
        leased_job: &LeasedJob,
        deleted: Result<(), LeaseError>,
    ) -> Result<Outcome, Error> {
        match deleted {
            Ok(()) => Ok(Outcome::Completed),
            Err(LeaseError::Uncertain(_) | LeaseError::Refused(_)) => {
                self.remember(leased_job);
                Box::pin(self.record(leased_job)).await;
                Ok(Outcome::CompletedUncertain)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Remembers that the job is done, so that another message of it does not run.
    fn remember(&self, leased_job: &LeasedJob) {
        let queue = &leased_job.core.name;
        let completed = &self.state.completed;
        leased_job.with_envelope(|event| completed.remember(queue, &event.identity(), event.digest()));
    }

    /// Records the completion durably if the worker is configured so. A failure does not change that the job is done.
    async fn record(&self, leased_job: &LeasedJob) {
        if !self.state.options.durable_completions {
            return;
        }
        let Some(event) = leased_job.event() else { return };
        let blobs = &**self.state.storage.blobs();
        let give_up = leased_job.lease.deadline().max(Instant::now() + LEAST_PATIENCE);
        if let Err(error) = durable::record_completion(&leased_job.core, blobs, event, give_up).await {
            crate::log::warn!(queue = %leased_job.core.name, error = %chain(&error), "completion not recorded; the job may run again");
        }
    }

    /// Returns whether this worker remembers that the job is done.
    pub(super) fn is_remembered(&self, leased_job: &LeasedJob, job: &JobInfo) -> bool {
        let completed = &self.state.completed;
        let remembered = leased_job
            .with_envelope(|event| completed.contains(&job.queue, &event.identity(), || event.digest()));
        remembered == Some(true)
    }

    /// Returns whether the job was done in an earlier delivery, or through another message of it.
    pub(super) async fn is_done(&self, leased_job: &LeasedJob, job: &JobInfo) -> bool {
        if self.is_remembered(leased_job, job) {
            return true;
        }
        // At the first delivery, only a job with blobs can have been done through another message.
        let is_first = leased_job.dequeue_count <= 1 && !leased_job.has_blobs();
        if !self.state.options.durable_completions || is_first {
            return false;
        }
        let Some(event) = leased_job.event() else { return false };
        let recorded = durable::is_recorded(&**self.state.storage.blobs(), &job.queue, event);
        Box::pin(recorded).await.unwrap_or_else(|error| {
            // Without an answer the job runs: at least once, not at most once.
            crate::log::warn!(queue = %job.queue, error = %chain(&error), "reading the recorded completions failed; the job runs");
            false
        })
    }
}

/// Returns the jobs whose messages are still to be deleted: those of all reports.
fn undeleted(reports: &[DeliveryReport]) -> Vec<Arc<LeasedJob>> {
    reports.iter().filter_map(|report| report.undeleted.as_ref().and_then(HeldJob::get)).collect()
}
