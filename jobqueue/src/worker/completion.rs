//! Completes jobs: deletes the messages of jobs whose handler has finished, alone or together.
//!
//! Where one request for many messages costs less than many requests, the messages of jobs that finish at about the
//! same time are deleted together: while one request is under way, the next gathers.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;

use super::durable;
use super::ending::Finished;
use super::queue_worker::{DeliveryGuard, QueueWorker};
use super::shared::Shared;
use crate::error::Error;
use crate::job::JobInfo;
use crate::job::outcome::{Outcome, chain};
use crate::lease::LeaseError;
use crate::queue::LeasedJob;
use crate::sync::lock;
use crate::trace::{OpenSpan, Step};

/// The maximum number of messages to delete by one request. A larger number would delay the first for little gain.
const MAX_TOGETHER: usize = 1_024;
/// The maximum number of concurrent requests: while the storage executes one, the next is already on its way.
const MAX_REQUESTS: usize = 2;

/// A delivery whose handler has finished and whose message must be deleted.
pub(super) struct Completion {
    pub(super) leased_job: Arc<LeasedJob>,
    pub(super) job: Arc<JobInfo>,
    pub(super) ran: Duration,
    /// Declared last and so dropped last: the job is over with it.
    pub(super) guard: DeliveryGuard,
}

/// The messages of a queue that wait for their deletion.
#[derive(Default)]
pub(super) struct Completions(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    completions: Vec<Completion>,
    /// The number of tasks that send deletions.
    requests: usize,
}

impl Completions {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.0)
    }

    /// Adds a message. Returns true if the caller must call [`delete`](Self::delete).
    pub(super) fn add(&self, completion: Completion) -> bool {
        let mut waiting = self.waiting();
        waiting.completions.push(completion);
        let is_first = waiting.requests < MAX_REQUESTS;
        waiting.requests += usize::from(is_first);
        is_first
    }

    /// Sends deletions until no message waits, and concludes each delivery. If the future is dropped with its worker,
    /// the remaining messages become visible again.
    pub(super) async fn delete(&self, shared: &Shared, conclude: impl Fn(Finished, &DeliveryGuard)) {
        loop {
            let completions = {
                let mut waiting = self.waiting();
                let count = waiting.completions.len().min(MAX_TOGETHER);
                if count == 0 {
                    waiting.requests -= 1;
                    return;
                }
                waiting.completions.drain(..count).collect::<Vec<_>>()
            };
            let done = completions.iter().map(|one| (&*one.leased_job, &*one.job));
            let mut span = span_of(shared, &completions);
            let settled = span.run(pin!(complete_all(shared, done))).await;
            span.end(Some(Outcome::Completed.name()), settled.iter().find_map(settle_error));
            for (Completion { leased_job, job, ran, guard }, settled) in completions.into_iter().zip(settled)
            {
                conclude(Finished::of(&leased_job, Some(job), settled, ran, None), &guard);
                drop((leased_job, guard));
            }
        }
    }
}

/// Starts the tracer's span of a common deletion.
fn span_of(shared: &Shared, completions: &[Completion]) -> OpenSpan {
    let (Some(first), true) = (completions.first(), shared.events.trace()) else { return OpenSpan::none() };
    let contexts: Vec<_> = completions.iter().map(|one| one.job.trace).collect();
    let alone = completions.len() == 1;
    shared.events.span(|| Step::Settle {
        queue: &first.leased_job.core.name,
        id: alone.then_some(&*first.job.id),
        messages: completions.len(),
        process: alone.then_some(first.job.trace),
        messages_of: if alone { &[] } else { &contexts },
    })
}

/// Returns the code of a completion that failed or is in doubt.
fn settle_error(settled: &Result<Outcome, Error>) -> Option<&'static str> {
    match settled {
        Err(error) => Some(error.kind().as_str()),
        Ok(Outcome::CompletedUncertain) => Some("uncertain"),
        Ok(_) => None,
    }
}

/// Returns whether the message is deleted together with others and not by its own delivery. A message whose lease has
/// expired is deleted at once, before anybody can receive it again, this worker included.
pub(super) fn together(worker: &QueueWorker, leased_job: &LeasedJob) -> bool {
    worker.core.store().commits_together() && leased_job.lease.loss().is_none() && !leased_job.has_blobs()
}

/// Deletes the message of a job that is done.
pub(super) async fn complete(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &JobInfo,
) -> Result<Outcome, Error> {
    let has_blobs = leased_job.has_blobs();
    let deleted = leased_job.complete().await;
    if has_blobs && deleted.is_ok() {
        // Another message may share the blobs, for instance because a producer repeated a put: it cannot run without
        // them.
        remember(shared, leased_job);
        Box::pin(record(shared, leased_job, job)).await;
    }
    completed(shared, leased_job, job, deleted).await
}

/// Deletes a duplicate: a message whose job was done before, or that another message of the job replaces. The
/// deletion says nothing about whether the job is done; the other message may still wait for its next attempt.
pub(super) async fn discard(leased_job: &LeasedJob) -> Result<Outcome, Error> {
    match leased_job.complete().await {
        Ok(()) | Err(LeaseError::Uncertain(_) | LeaseError::Refused(_)) => Ok(Outcome::Duplicate),
        Err(error) => Err(error.into()),
    }
}

/// Deletes the messages of completed jobs of one queue by one request. None of them has blobs. Returns the outcomes
/// in order.
async fn complete_all<'d>(
    shared: &Shared,
    done: impl Iterator<Item = (&'d LeasedJob, &'d JobInfo)> + Clone,
) -> Vec<Result<Outcome, Error>> {
    let settled = LeasedJob::complete_all(done.clone().map(|(leased_job, _)| leased_job)).await;
    let mut outcomes = Vec::with_capacity(settled.len());
    let mut doubtful = Vec::new();
    for (index, ((leased_job, job), settled)) in done.zip(settled).enumerate() {
        outcomes.push(Ok(Outcome::Completed));
        if settled.is_err() {
            doubtful.push(async move { (index, completed(shared, leased_job, job, settled).await) });
        }
    }
    for (index, outcome) in join_all(doubtful).await {
        outcomes[index] = outcome;
    }
    outcomes
}

/// Returns the job's outcome for this answer to the deletion.
async fn completed(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &JobInfo,
    deleted: Result<(), LeaseError>,
) -> Result<Outcome, Error> {
    match deleted {
        Ok(()) => Ok(Outcome::Completed),
        Err(LeaseError::Uncertain(_) | LeaseError::Refused(_)) => {
            remember(shared, leased_job);
            Box::pin(record(shared, leased_job, job)).await;
            Ok(Outcome::CompletedUncertain)
        }
        Err(error) => Err(error.into()),
    }
}

/// Remembers that the job is done, so that another message of it does not run.
fn remember(shared: &Shared, leased_job: &LeasedJob) {
    let queue = &leased_job.core.name;
    leased_job.with_envelope(|event| shared.completed.remember(queue, &event.identity(), event.digest()));
}

/// Records the completion durably if the worker is configured so. A failure does not change that the job is done.
async fn record(shared: &Shared, leased_job: &LeasedJob, job: &JobInfo) {
    if !shared.options.durable_completions {
        return;
    }
    let Some(event) = leased_job.event() else { return };
    let now = leased_job.core.options.clock.now();
    let blobs = &**shared.storage.blobs();
    if let Err(error) = durable::record_completion(blobs, &job.queue, event, now).await {
        tracing::warn!(queue = %job.queue, error = %chain(&error), "completion not recorded; the job may run again");
    }
}

/// Returns whether the job was done in an earlier delivery, or through another message of it.
pub(super) async fn is_done(shared: &Shared, leased_job: &LeasedJob, job: &JobInfo) -> bool {
    let remembered = leased_job
        .with_envelope(|event| shared.completed.contains(&job.queue, &event.identity(), || event.digest()));
    if remembered == Some(true) {
        return true;
    }
    // At the first delivery, only a job with blobs can have been done through another message.
    let is_first = leased_job.dequeue_count <= 1 && !leased_job.has_blobs();
    if !shared.options.durable_completions || is_first {
        return false;
    }
    let Some(event) = leased_job.event() else { return false };
    let recorded = durable::is_recorded(&**shared.storage.blobs(), &job.queue, event);
    Box::pin(recorded).await.unwrap_or_else(|error| {
        // Without an answer the job runs: at least once, not at most once.
        tracing::warn!(queue = %job.queue, error = %chain(&error), "reading the recorded completions failed; the job runs");
        false
    })
}
