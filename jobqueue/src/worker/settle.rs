//! Settles a delivery: decides what happens to its message.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use super::dead_letter_hook::DeadLettered;
use super::ending::{Ending, Failure, Finished};
use super::run::Ran;
use super::shared::Shared;
use super::{completion, hooks};
use crate::error::{Error, ErrorKind};
use crate::job::JobInfo;
use crate::job::outcome::{Outcome, Reason, Verdict, chain};
use crate::job::retry::MAX_DELAY;
use crate::queue::{self, Cause, DEAD_LETTER_RETRY, Deferred, LeasedJob, Rejection};
use crate::trace::{Step, TraceContext};

/// Settles a delivery, in a span of the tracer if there is one.
pub(super) async fn settle(shared: &Shared, leased_job: &LeasedJob, ran: Ran) -> Finished {
    let Ran { ending, ran, process } = ran;
    if !shared.events.trace() || matches!(ending, Ending::LeaseLost | Ending::TakenOver(_)) {
        return settle_untraced(shared, leased_job, ending, ran).await;
    }
    // Boxed for the same reason as below.
    Box::pin(settle_traced(shared, leased_job, ending, (ran, process))).await
}

async fn settle_traced(
    shared: &Shared,
    leased_job: &LeasedJob,
    ending: Ending,
    (ran, process): (Duration, Option<TraceContext>),
) -> Finished {
    let sender = if process.is_some() { None } else { leased_job.sender().0 };
    let id = leased_job.with_envelope(|event| Arc::clone(&event.id));
    let mut span = shared.events.span(|| Step::Settle {
        queue: &leased_job.core.name,
        id: id.as_deref(),
        messages: 1,
        process,
        messages_of: sender.as_slice(),
    });
    let finished = span.run(pin!(settle_untraced(shared, leased_job, ending, ran))).await;
    span.end(Some(finished.outcome.name()), finished.settle_error());
    finished
}

async fn settle_untraced(shared: &Shared, leased_job: &LeasedJob, ending: Ending, ran: Duration) -> Finished {
    if let Ending::Done(job) = ending {
        let settled = completion::complete(shared, leased_job, &job).await;
        return Finished::of(leased_job, Some(job), settled, ran, None);
    }
    // Boxed, so that the rare ends do not enlarge the future of every delivery.
    Box::pin(settle_otherwise(shared, leased_job, ending, ran)).await
}

async fn settle_otherwise(
    shared: &Shared,
    leased_job: &LeasedJob,
    ending: Ending,
    ran: Duration,
) -> Finished {
    let told = match &ending {
        Ending::Failed(_, failure) => Some(failure.error.chain()),
        Ending::Rejected(rejection) => Some(rejection.detail.clone()),
        Ending::Deferred(cause, detail) => Some(format!("{}: {detail}", cause.reason())),
        _ => None,
    };
    let job = match &ending {
        Ending::Done(job) | Ending::Duplicate(job) | Ending::Failed(job, _) | Ending::TakenOver(job) => {
            Some(Arc::clone(job))
        }
        _ => leased_job.info().map(Arc::new),
    };
    let settled = match ending {
        Ending::Done(job) => completion::complete(shared, leased_job, &job).await,
        Ending::Duplicate(_) => completion::discard(leased_job).await,
        Ending::Failed(job, failure) => fail(shared, leased_job, &job, failure).await,
        Ending::Rejected(rejection) => reject(shared, leased_job, rejection).await,
        Ending::Released(wait) | Ending::OverLimit(wait) => release(leased_job, wait).await,
        Ending::Deferred(cause, detail) => defer(shared, leased_job, cause, &detail).await,
        Ending::LeaseLost => {
            shared.note_loss(leased_job);
            leased_job.lease.abandon();
            Ok(Outcome::LeaseLost)
        }
        Ending::TakenOver(_) => Ok(Outcome::Released(Duration::ZERO)),
    };
    Finished::of(leased_job, job, settled, ran, told)
}

async fn fail(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &JobInfo,
    failure: Failure,
) -> Result<Outcome, Error> {
    let text = failure.error.chain();
    let exhausted = job.attempt >= job.max_attempts;
    let delay = match verdict(shared, job, &failure) {
        Verdict::Snooze(wait) => {
            leased_job.end_wait();
            return release(leased_job, wait).await;
        }
        Verdict::DeadLetter => {
            let rejection = Rejection::of_attempt(Reason::REJECTED, text);
            return dead_letter(shared, leased_job, rejection).await;
        }
        _ if exhausted => {
            return dead_letter(shared, leased_job, Rejection::of_attempt(failure.last, text)).await;
        }
        Verdict::Retry => failure.backoff.unwrap_or_default().delay(job.attempt),
        Verdict::RetryAfter(wait) => wait.min(MAX_DELAY),
    };
    leased_job.retry(delay, &text).await?;
    Ok(Outcome::Retried(delay))
}

/// Returns the verdict of the application's policy, or the error's own. A policy that panics decides nothing.
fn verdict(shared: &Shared, job: &JobInfo, failure: &Failure) -> Verdict {
    let own = failure.error.verdict();
    match shared.options.retry_policy.as_ref().filter(|_| failure.ask_policy) {
        None => own,
        Some(policy) => match catch_unwind(AssertUnwindSafe(|| policy(&failure.error, job))) {
            Ok(verdict) => verdict.unwrap_or(own),
            Err(_) => {
                tracing::error!(queue = %job.queue, "the retry policy panicked; the error's own verdict holds");
                own
            }
        },
    }
}

async fn release(leased_job: &LeasedJob, wait: Duration) -> Result<Outcome, Error> {
    let wait = wait.min(MAX_DELAY);
    leased_job.release_uncounted(wait).await?;
    Ok(Outcome::Released(wait))
}

/// Puts the message back until what it waits for has come, or dead-letters it when it has waited long enough.
async fn defer(
    shared: &Shared,
    leased_job: &LeasedJob,
    cause: Cause,
    detail: &str,
) -> Result<Outcome, Error> {
    match queue::defer(leased_job, cause, detail).await? {
        Deferred::PutBack(wait) => Ok(Outcome::Released(wait)),
        // The hook has failed for long enough.
        Deferred::Over(rejection) if cause == Cause::BrokenHook => {
            copy(shared, leased_job, leased_job.info(), rejection).await
        }
        Deferred::Over(rejection) => reject(shared, leased_job, rejection).await,
    }
}

/// Dead-letters a message that did not run, within the rate.
async fn reject(shared: &Shared, leased_job: &LeasedJob, rejection: Rejection) -> Result<Outcome, Error> {
    match shared.rejections.permit() {
        Ok(()) => dead_letter(shared, leased_job, rejection).await,
        Err(wait) => release(leased_job, wait).await,
    }
}

/// Dead-letters a message: records the attempt if there was one, calls the hooks, and moves the message.
async fn dead_letter(
    shared: &Shared,
    leased_job: &LeasedJob,
    mut rejection: Rejection,
) -> Result<Outcome, Error> {
    let job = leased_job.info();
    let Some(told) = job.as_ref().filter(|job| hooks::concern(shared, job)) else {
        queue::record_end(leased_job, &mut rejection).await?;
        return copy(shared, leased_job, job, rejection).await;
    };
    match queue::record_end_for_others(leased_job, &mut rejection).await {
        // Waiting will not help: the event has no room, or the storage refuses for good.
        Err(error) if error.kind() == ErrorKind::LeaseLost => return Err(error),
        Err(error) if error.kind() != ErrorKind::LeaseUncertain && !error.is_retryable() => {
            tracing::error!(queue = %told.queue, error = %chain(&error), "a failed attempt cannot be recorded");
        }
        // Jobs behind it would start although this one may run again.
        Err(error) => return stay(leased_job, error).await,
        Ok(()) => {}
    }
    if let Err(ending) = hooks::dead_lettering(shared, leased_job, told, &rejection).await {
        let Ending::Deferred(cause, detail) = ending else {
            leased_job.lease.abandon();
            return Ok(Outcome::LeaseLost);
        };
        if let Deferred::PutBack(wait) = queue::defer(leased_job, cause, &detail).await? {
            return Ok(Outcome::Released(wait));
        }
        tracing::error!(queue = %told.queue, detail, "dead-lettered although a hook of the job failed");
    }
    copy(shared, leased_job, job, rejection).await
}

/// Moves the message to the dead-letter queue. If the copy cannot be stored, the message stays and is tried again
/// later.
async fn copy(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: Option<JobInfo>,
    rejection: Rejection,
) -> Result<Outcome, Error> {
    match queue::dead_letter(leased_job, &rejection).await {
        Ok(_) => {
            let Rejection { reason, detail, .. } = rejection;
            let dead = || DeadLettered {
                job: job.map(Arc::new),
                queue: leased_job.core.name.clone(),
                reason: reason.clone(),
                error: detail,
            };
            shared.options.dead_letter_hooks.call(dead).await;
            Ok(Outcome::DeadLettered(reason))
        }
        Err(error) => stay(leased_job, error).await,
    }
}

/// Leaves a message in its queue that could not be dead-lettered, to be tried again later.
async fn stay(leased_job: &LeasedJob, error: Error) -> Result<Outcome, Error> {
    if matches!(error.kind(), ErrorKind::LeaseLost | ErrorKind::LeaseUncertain) {
        return Err(error);
    }
    tracing::error!(
        queue = %leased_job.core.name,
        error = %chain(&error),
        "dead letter not stored; the message stays in its queue"
    );
    release(leased_job, DEAD_LETTER_RETRY).await
}
