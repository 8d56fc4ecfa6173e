//! The end of a job that is done: its message is deleted, alone or together with those of others.
//!
//! Where one request for many costs less, the messages of jobs that are done at about the same time are deleted together: while one
//! request is under way, the next gathers.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use futures_util::future::join_all;

use super::durable;
use super::ending::Finished;
use super::queue_worker::{Place, QueueWorker};
use super::shared::Shared;
use crate::error::Error;
use crate::job::JobInfo;
use crate::job::outcome::{Outcome, chain};
use crate::lease::LeaseError;
use crate::queue::LeasedJob;
use crate::sync::lock;

/// The most messages to delete by one request: more would delay the first for little gain.
const MAX_TOGETHER: usize = 1_024;
/// The most requests under way: while the storage does one, the next waits at its door.
const MAX_REQUESTS: usize = 2;

/// A delivery whose handler is done and whose message is yet to be deleted.
pub(super) struct Completion {
    pub(super) leased_job: Arc<LeasedJob>,
    pub(super) job: Arc<JobInfo>,
    pub(super) ran: Duration,
    /// Declared last, dropped last: with it the job is over.
    pub(super) place: Place,
}

/// The messages of a queue that wait for their deletion.
#[derive(Default)]
pub(super) struct Completions(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    completions: Vec<Completion>,
    /// The number of tasks that are deleting.
    requests: usize,
}

impl Completions {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        lock(&self.0)
    }

    /// Adds a message. True if the caller is to [`delete`](Self::delete) what waits.
    pub(super) fn add(&self, completion: Completion) -> bool {
        let mut waiting = self.waiting();
        waiting.completions.push(completion);
        let is_first = waiting.requests < MAX_REQUESTS;
        waiting.requests += usize::from(is_first);
        is_first
    }

    /// Deletes until nothing waits any more, and tells the end of each. One that is dropped ends with the worker, whose messages come
    /// back.
    pub(super) async fn delete(&self, shared: &Shared, conclude: impl Fn(Finished, &Place)) {
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
            let settled = complete_all(shared, done).await;
            for (Completion { leased_job, job, ran, place }, settled) in completions.into_iter().zip(settled)
            {
                conclude(Finished::of(&leased_job, Some(job), settled, ran, None), &place);
                drop((leased_job, place));
            }
        }
    }
}

/// Returns whether the message of a job that is done is deleted together with others, and so not by its delivery. One whose lease is over is
/// deleted at once, before somebody else can get it: also this worker, which has a slot free now.
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
        // Another message that shares them, as a producer makes it that repeats a put, cannot be run without them.
        remember(shared, leased_job);
        Box::pin(record(shared, leased_job, job)).await;
    }
    completed(shared, leased_job, job, deleted).await
}

/// Deletes a message whose job was done before, or of which another message counts. That it is superfluous does not mean that the job
/// is done: the one that counts may wait for its next attempt.
pub(super) async fn discard(leased_job: &LeasedJob) -> Result<Outcome, Error> {
    match leased_job.complete().await {
        Ok(()) | Err(LeaseError::Uncertain(_) | LeaseError::Refused(_)) => Ok(Outcome::Duplicate),
        Err(error) => Err(error.into()),
    }
}

/// Deletes the messages of jobs of one queue that are done, whose messages have no blobs, by one request; the answers stand in their order.
async fn complete_all<'d>(
    shared: &Shared,
    done: impl Iterator<Item = (&'d LeasedJob, &'d JobInfo)> + Clone,
) -> Vec<Result<Outcome, Error>> {
    let settled = LeasedJob::complete_all(done.clone().map(|(leased_job, _)| leased_job)).await;
    let mut outcomes = Vec::with_capacity(settled.len());
    let mut doubtful = Vec::new();
    for (place, ((leased_job, job), settled)) in done.zip(settled).enumerate() {
        outcomes.push(Ok(Outcome::Completed));
        if settled.is_err() {
            doubtful.push(async move { (place, completed(shared, leased_job, job, settled).await) });
        }
    }
    for (place, outcome) in join_all(doubtful).await {
        outcomes[place] = outcome;
    }
    outcomes
}

/// Returns what the answer to a deletion means for the job.
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

/// Remembers that the job is done, so that another message of it is not run.
fn remember(shared: &Shared, leased_job: &LeasedJob) {
    let queue = &leased_job.core.name;
    leased_job.with_envelope(|event| shared.completed.remember(queue, &event.identity(), event.digest()));
}

/// Records a completion durably, if the worker is to. The job is done whether that works or not.
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

/// Returns whether the job was done in an earlier delivery, or by another message of it.
pub(super) async fn is_done(shared: &Shared, leased_job: &LeasedJob, job: &JobInfo) -> bool {
    let remembered = leased_job
        .with_envelope(|event| shared.completed.contains(&job.queue, &event.identity(), || event.digest()));
    if remembered == Some(true) {
        return true;
    }
    // At the first delivery, only what is in a blob may be done already by another message.
    let is_first = leased_job.dequeue_count <= 1 && !leased_job.has_blobs();
    if !shared.options.durable_completions || is_first {
        return false;
    }
    let Some(event) = leased_job.event() else { return false };
    let recorded = durable::is_recorded(&**shared.storage.blobs(), &job.queue, event);
    Box::pin(recorded).await.unwrap_or_else(|error| {
        // At least once, not at most once.
        tracing::warn!(queue = %job.queue, error = %chain(&error), "completions cannot be read; the job runs");
        false
    })
}
