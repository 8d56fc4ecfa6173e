//! From the end of a run to what becomes of the message.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use super::context::HandlerOutput;
use super::durable;
use super::hook::{Decision, HookContext};
use super::shared::Shared;
use crate::error::{Error, ErrorKind};
use crate::job::JobInfo;
use crate::job::outcome::{JobError, Outcome, Reason, Verdict, chain};
use crate::job::retry::{Backoff, MAX_DELAY};
use crate::lease::LeaseError;
use crate::queue::{DEAD_LETTER_RETRY, LeasedJob, Rejection, Uncounted};

/// How long a message nobody here can read is left to newer workers: doubling to 5 minutes.
const UNKNOWN_BACKOFF: Backoff = Backoff::exponential(Duration::from_secs(5), Duration::from_secs(300));

/// How long a message waits whose end could not be told to the hooks.
const HOOK_RETRY: Duration = Duration::from_secs(5);

/// How a delivery came to its end, before it is settled.
#[derive(Debug)]
pub(super) enum Ending {
    /// The handler finished.
    Done,
    /// The handler failed; the type's back-off, and the reason if this was the last attempt.
    Failed(JobError, Option<Backoff>, Reason),
    /// Never to be run.
    Reject(Rejection),
    /// To be put back for this time; costs no attempt.
    PutBack(Duration),
    /// No handler here reads it: an unknown kind or a newer version.
    Unknown(Reason),
    /// Done before.
    Duplicate,
    /// The lease is lost: nothing may be settled.
    LeaseLost,
}

/// How a delivery ended.
pub(super) struct Finished {
    pub(super) job: Option<Arc<JobInfo>>,
    pub(super) outcome: Outcome,
    pub(super) ran: Duration,
    pub(super) error: Option<String>,
}

/// Asks the hooks whether the handler is to run.
pub(super) async fn admit(shared: &Shared, leased_job: &LeasedJob, job: &JobInfo) -> Result<Decision, Error> {
    for hook in shared.hooks.iter().filter(|hook| hook.applies_to(job)) {
        let admission = hook.admit(hook_context(shared, leased_job, job)).await?;
        if admission != Decision::Run {
            return Ok(admission);
        }
    }
    Ok(Decision::Run)
}

/// Tells the hooks that the job is done. If one fails, the message stays instead of `ending`.
pub(super) async fn completing(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &JobInfo,
    left: &HandlerOutput,
    ending: Ending,
) -> Ending {
    for hook in shared.hooks.iter().filter(|hook| hook.applies_to(job)) {
        let hook_context = hook_context(shared, leased_job, job);
        if let Err(error) = hook.completing(hook_context, left.result.as_deref(), left.handed_over).await {
            return hook_failed(leased_job, &error);
        }
    }
    ending
}

/// The ending when a hook could not do its part: the message is delivered again soon.
pub(super) fn hook_failed(leased_job: &LeasedJob, error: &Error) -> Ending {
    tracing::warn!(queue = %leased_job.core.name, error = %chain(error), "the end of a job could not be recorded; the message stays");
    Ending::PutBack(HOOK_RETRY)
}

fn hook_context<'a>(shared: &'a Shared, leased_job: &'a LeasedJob, job: &'a JobInfo) -> HookContext<'a> {
    let now = leased_job.core.options.clock.now();
    HookContext { storage: &shared.storage, job, message: leased_job.lease.message_id(), now }
}

/// Settles a delivery.
pub(super) async fn end(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: Option<Arc<JobInfo>>,
    ending: Ending,
    ran: Duration,
) -> Finished {
    let told = match &ending {
        Ending::Failed(error, ..) => Some(error.chain()),
        Ending::Reject(rejection) => Some(rejection.detail.clone()),
        Ending::Unknown(reason) => Some(reason.to_string()),
        _ => None,
    };
    let settled = match (&job, ending) {
        (Some(job), Ending::Done) => complete(shared, leased_job, job, Outcome::Completed).await,
        // Boxed, so that the rare ends do not make the future of every delivery large.
        (job, ending) => Box::pin(otherwise(shared, leased_job, job.as_deref(), ending)).await,
    };
    finished(leased_job, job, settled, ran, told)
}

/// What is told of a delivery, once it was tried to settle it.
pub(super) fn finished(
    leased_job: &LeasedJob,
    job: Option<Arc<JobInfo>>,
    settled: Result<Outcome, Error>,
    ran: Duration,
    told: Option<String>,
) -> Finished {
    match settled {
        Ok(outcome) => Finished { job, outcome, ran, error: told },
        Err(error) => {
            // Not settled: the message comes back when its lease is over.
            leased_job.lease.abandon();
            let text = chain(&error);
            tracing::warn!(queue = %leased_job.core.name, error = %text, "delivery not settled");
            Finished { job, outcome: Outcome::LeaseLost, ran, error: told.or(Some(text)) }
        }
    }
}

/// All ends but the usual one.
async fn otherwise(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: Option<&JobInfo>,
    ending: Ending,
) -> Result<Outcome, Error> {
    match (job, ending) {
        (Some(job), Ending::Done) => complete(shared, leased_job, job, Outcome::Completed).await,
        (Some(job), Ending::Duplicate) => complete(shared, leased_job, job, Outcome::Duplicate).await,
        (Some(job), Ending::Failed(error, backoff, reason)) => {
            fail(shared, leased_job, job, error, backoff, reason).await
        }
        (_, Ending::Reject(rejection)) => match shared.rejections.permit() {
            Ok(()) => dead_letter(shared, leased_job, rejection).await,
            Err(wait) => put_back(leased_job, wait, Uncounted::Plain).await,
        },
        (_, Ending::PutBack(wait)) => put_back(leased_job, wait, Uncounted::Plain).await,
        (_, Ending::Unknown(reason)) => unknown(shared, leased_job, reason).await,
        (_, Ending::LeaseLost) => {
            leased_job.lease.abandon();
            Ok(Outcome::LeaseLost)
        }
        (None, Ending::Done | Ending::Duplicate | Ending::Failed(..)) => {
            put_back(leased_job, DEAD_LETTER_RETRY, Uncounted::Plain).await
        }
    }
}

async fn complete(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &JobInfo,
    certainly: Outcome,
) -> Result<Outcome, Error> {
    let has_blobs = leased_job.has_blobs();
    let settled = leased_job.complete().await;
    completed(shared, leased_job, job, certainly, has_blobs, settled).await
}

/// Completes deliveries of one channel whose messages have no blobs, by one request; the answers stand in their order.
pub(super) async fn complete_all<'d>(
    shared: &Shared,
    done: impl Iterator<Item = (&'d LeasedJob, &'d JobInfo)> + Clone,
) -> Vec<Result<Outcome, Error>> {
    let settled = LeasedJob::complete_all(done.clone().map(|(leased_job, _)| leased_job)).await;
    let mut outcomes = Vec::with_capacity(settled.len());
    let mut doubtful = Vec::new();
    for (place, ((leased_job, job), settled)) in done.zip(settled).enumerate() {
        outcomes.push(Ok(Outcome::Completed));
        if settled.is_err() {
            doubtful.push(async move {
                (place, completed(shared, leased_job, job, Outcome::Completed, false, settled).await)
            });
        }
    }
    for (place, outcome) in join_all(doubtful).await {
        outcomes[place] = outcome;
    }
    outcomes
}

/// What the answer to a deletion means for the job.
async fn completed(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &JobInfo,
    certainly: Outcome,
    has_blobs: bool,
    settled: Result<(), LeaseError>,
) -> Result<Outcome, Error> {
    match settled {
        // That a copy of a message is superfluous does not mean that the job is done: the one that counts may wait for its
        // next attempt.
        Ok(_) | Err(LeaseError::Uncertain(_) | LeaseError::Refused(_)) if certainly == Outcome::Duplicate => {
            Ok(certainly)
        }
        Ok(()) => {
            if has_blobs {
                // A second copy of the message, made by a repeated send, cannot be run without them.
                remember(shared, leased_job);
            }
            Ok(certainly)
        }
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

/// Whether the job was done in an earlier delivery.
pub(super) async fn is_done(shared: &Shared, leased_job: &LeasedJob, job: &JobInfo) -> bool {
    let remembered = leased_job
        .with_envelope(|event| shared.completed.contains(&job.queue, &event.identity(), || event.digest()));
    if remembered == Some(true) {
        return true;
    }
    if !shared.options.durable_completions || leased_job.dequeue_count <= 1 {
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

async fn fail(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &JobInfo,
    error: JobError,
    backoff: Option<Backoff>,
    last: Reason,
) -> Result<Outcome, Error> {
    let policy = shared.options.retry_policy.as_ref();
    let verdict = policy.and_then(|policy| policy(&error, job)).unwrap_or_else(|| error.verdict());
    let exhausted = job.attempt >= job.max_attempts;
    let delay = match verdict {
        Verdict::Snooze(wait) => return put_back(leased_job, wait, Uncounted::Plain).await,
        Verdict::DeadLetter => {
            return dead_letter(shared, leased_job, Rejection::of_attempt(Reason::REJECTED, error.chain()))
                .await;
        }
        _ if exhausted => {
            return dead_letter(shared, leased_job, Rejection::of_attempt(last, error.chain())).await;
        }
        Verdict::Retry => backoff.unwrap_or_default().delay(job.attempt),
        Verdict::RetryAfter(wait) => wait.min(MAX_DELAY),
    };
    leased_job.retry(delay, &error.chain()).await?;
    Ok(Outcome::Retried(delay))
}

async fn put_back(
    leased_job: &LeasedJob,
    wait: Duration,
    release_uncounted: Uncounted,
) -> Result<Outcome, Error> {
    let wait = wait.min(MAX_DELAY);
    leased_job.release_uncounted(wait, release_uncounted).await?;
    Ok(Outcome::Released(wait))
}

/// A newer worker may know it: put back, up to the poison threshold.
async fn unknown(shared: &Shared, leased_job: &LeasedJob, reason: Reason) -> Result<Outcome, Error> {
    let deferred = leased_job.with_envelope(|envelope| envelope.history.deferred).unwrap_or(0);
    if deferred >= leased_job.settings.poison_threshold {
        let detail = format!("no worker could read it in {deferred} deliveries");
        return dead_letter(shared, leased_job, Rejection::new(reason, detail)).await;
    }
    put_back(leased_job, UNKNOWN_BACKOFF.delay(deferred + 1), Uncounted::Unknown).await
}

/// Dead-letters. If the copy cannot be stored, the message stays and is tried again later.
async fn dead_letter(
    shared: &Shared,
    leased_job: &LeasedJob,
    rejection: Rejection,
) -> Result<Outcome, Error> {
    if let Some(job) = leased_job.info() {
        for hook in shared.hooks.iter().filter(|hook| hook.applies_to(&job)) {
            let told = hook.dead_lettering(
                hook_context(shared, leased_job, &job),
                rejection.reason.as_str(),
                &rejection.detail,
            );
            if let Err(error) = told.await {
                let Ending::PutBack(wait) = hook_failed(leased_job, &error) else { continue };
                return put_back(leased_job, wait, Uncounted::Plain).await;
            }
        }
    }
    match leased_job.dead_letter(&rejection).await {
        Ok(_) => Ok(Outcome::DeadLettered(rejection.reason)),
        Err(error) if matches!(error.kind(), ErrorKind::LeaseLost | ErrorKind::LeaseUncertain) => Err(error),
        Err(error) => {
            tracing::error!(
                queue = %leased_job.core.name,
                error = %chain(&error),
                "dead letter not stored; the message stays in its queue"
            );
            put_back(leased_job, DEAD_LETTER_RETRY, Uncounted::Plain).await
        }
    }
}
