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
use crate::lease::LeaseError;
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
    /// reports. If the future is dropped, the remaining messages become visible again. It does not panic: if application code does, which
    /// messages are deleted is unknown.
    pub(crate) async fn delete_together(&self, reports: &mut [DeliveryReport]) {
        let Err(panic) = AssertUnwindSafe(self.delete_all(reports)).catch_unwind().await else { return };
        let text = format!("a panic outside the handler: {}", panic_text(&*panic));
        for report in reports.iter_mut().filter(|report| report.outcome == Outcome::LeaseLost) {
            if let Some(leased_job) = report.undeleted.as_ref().and_then(HeldJob::get) {
                self.remember(&leased_job);
            }
            report.outcome = Outcome::CompletedUncertain;
            report.error.get_or_insert_with(|| text.clone());
        }
    }

    async fn delete_all(&self, reports: &mut [DeliveryReport]) {
        let leased_jobs: Vec<Arc<LeasedJob>> =
            reports.iter().filter_map(|report| report.undeleted.as_ref().and_then(HeldJob::get)).collect();
        let mut span = self.span_of_all(reports);
        let settled = span.run(pin!(self.complete_all(&leased_jobs))).await;
        span.end(Some(Outcome::Completed.name()), settled.iter().find_map(settle_error));
        for ((report, leased_job), settled) in reports.iter_mut().zip(&leased_jobs).zip(settled) {
            report.settled(leased_job, settled);
        }
    }

    /// Starts the tracer's span of a common deletion.
    fn span_of_all(&self, reports: &[DeliveryReport]) -> OpenSpan {
        if !self.state.events.trace() {
            return OpenSpan::none();
        }
        let jobs: Vec<&JobInfo> = reports.iter().filter_map(|report| report.job.as_deref()).collect();
        let contexts: Vec<_> = jobs.iter().map(|job| job.trace).collect();
        let alone = jobs.first().filter(|_| jobs.len() == 1);
        self.state.events.span(|| Step::Settle {
            queue: &self.core.name,
            id: alone.map(|job| &*job.id),
            messages: jobs.len(),
            process: alone.map(|job| job.trace),
            messages_of: if alone.is_some() { &[] } else { &contexts },
        })
    }

    /// Deletes the messages of completed jobs of one queue by one request. None of them has blobs. Returns the outcomes
    /// in order.
    async fn complete_all(&self, leased_jobs: &[Arc<LeasedJob>]) -> Vec<Result<Outcome, Error>> {
        let settled = LeasedJob::complete_all(leased_jobs.iter().map(|leased_job| &**leased_job)).await;
        let mut outcomes = Vec::with_capacity(settled.len());
        let mut doubtful = Vec::new();
        for (index, (leased_job, settled)) in leased_jobs.iter().zip(settled).enumerate() {
            outcomes.push(Ok(Outcome::Completed));
            if settled.is_err() {
                doubtful.push(async move { (index, self.completed(leased_job, settled).await) });
            }
        }
        for (index, outcome) in join_all(doubtful).await {
            outcomes[index] = outcome;
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

/// Returns the code of a completion that failed or is in doubt.
fn settle_error(settled: &Result<Outcome, Error>) -> Option<&'static str> {
    match settled {
        Err(error) => Some(error.kind().as_str()),
        Ok(Outcome::CompletedUncertain) => Some("uncertain"),
        Ok(_) => None,
    }
}
