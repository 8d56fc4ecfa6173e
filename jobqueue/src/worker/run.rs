//! One delivery, from the leased text to its end.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;
use tracing::Instrument;

use super::context::{Context, HandlerOutput};
use super::deliveries::Deliveries;
use super::event::Event;
use super::hook::Decision;
use super::poller::Done;
use super::registry::QueueHandlers;
use super::settle::{self, Ending, Finished};
use super::shared::Shared;
use crate::handler::{Job, Registration, recover};
use crate::job::JobInfo;
use crate::job::outcome::{JobError, Outcome, Reason};
use crate::queue::{Decoded, LeasedJob, Rejection};
use crate::settings::QueueSettings;
use crate::storage::LeasedMessage;

/// How far a delivery came.
pub(super) enum Delivered {
    /// To its end.
    Finished(Finished),
    /// Its handler is done; its message is to be deleted together with others.
    Done { leased_job: Arc<LeasedJob>, job: Arc<JobInfo>, ran: Duration },
}

/// Runs a leased message to its end, or until only its deletion is left.
pub(super) async fn deliver(
    deliveries: &Deliveries,
    leased: LeasedMessage,
    requested: Instant,
    settings: Arc<QueueSettings>,
    done: &Done,
) -> Delivered {
    let Deliveries { shared, core, queue_handlers, .. } = deliveries;
    let decoded = core.decode(leased, requested, settings, queue_handlers.bare()).await;
    match prepare(shared, queue_handlers, decoded).await {
        Ok((leased_job, info, registration, message)) => {
            run(deliveries, Arc::new(leased_job), info, registration, message, done).await
        }
        // Boxed as whatever is rare here: a delivery's future is copied and kept at its full size for every message.
        Err(over) => {
            let (leased_job, job, ending) = *over;
            let end = settle::end(shared, &leased_job, job, ending, Duration::ZERO);
            Delivered::Finished(Box::pin(end).await)
        }
    }
}

/// Puts a message back that was leased by a request under way when the worker was told to stop.
pub(super) async fn put_back(
    deliveries: &Deliveries,
    leased: LeasedMessage,
    requested: Instant,
    settings: Arc<QueueSettings>,
) {
    let Deliveries { shared, core, queue_handlers, .. } = deliveries;
    let (Decoded::Ready(leased_job, _)
    | Decoded::NotYet(leased_job, _)
    | Decoded::Unavailable(leased_job, _)
    | Decoded::Rejected(leased_job, _)) =
        core.decode(leased, requested, settings, queue_handlers.bare()).await;
    let job = leased_job.info().map(Arc::new);
    let finished =
        settle::end(shared, &leased_job, job, Ending::PutBack(Duration::ZERO), Duration::ZERO).await;
    shared.report().count(&finished.outcome);
}

/// What a handler is called with.
type Ready<'l> = (LeasedJob, Arc<JobInfo>, &'l Registration, Box<dyn std::any::Any + Send>);
/// A message that no handler is called for.
type Over = (LeasedJob, Option<Arc<JobInfo>>, Ending);

/// From an examined message to the call of its handler, or to its end without one.
async fn prepare<'l>(
    shared: &Shared,
    queue_handlers: &'l QueueHandlers,
    decoded: Decoded,
) -> Result<Ready<'l>, Box<Over>> {
    let over = |leased_job, job, ending| Err(Box::new((leased_job, job, ending)));
    let (leased_job, data) = match decoded {
        Decoded::Ready(leased_job, data) => (leased_job, data),
        Decoded::Rejected(leased_job, rejection) => {
            let job = leased_job.info().map(Arc::new);
            return over(leased_job, job, Ending::Reject(rejection));
        }
        Decoded::NotYet(leased_job, wait) => {
            let job = leased_job.info().map(Arc::new);
            return over(leased_job, job, Ending::PutBack(wait));
        }
        Decoded::Unavailable(leased_job, error) => {
            let job = leased_job.info().map(Arc::new);
            // Done before, and its payload removed: a copy that a repeated send has made.
            if let Some(info) = &job
                && settle::is_done(shared, &leased_job, info).await
            {
                return over(leased_job, job, Ending::Duplicate);
            }
            let failure = Ending::Failed(JobError::retry(error), None, Reason::PAYLOAD_MISSING);
            return over(leased_job, job, failure);
        }
    };
    let Some(info) = leased_job.info().map(Arc::new) else {
        let rejection = Rejection::new(Reason::DECODE_ERROR, "the message is not an event");
        return over(leased_job, None, Ending::Reject(rejection));
    };
    if settle::is_done(shared, &leased_job, &info).await {
        return over(leased_job, Some(info), Ending::Duplicate);
    }
    let Some(registration) = queue_handlers.find(&info.kind) else {
        return over(leased_job, Some(info), Ending::Unknown(Reason::UNKNOWN_KIND));
    };
    let message = match (registration.decode)(info.version, &data) {
        Ok(message) => message,
        Err(error) if error.is_newer_version() => {
            return over(leased_job, Some(info), Ending::Unknown(Reason::NEWER_VERSION));
        }
        Err(error) => return over(leased_job, Some(info), Ending::Reject(Rejection::undecodable(&error))),
    };
    let ending = match settle::admit(shared, &leased_job, &info).await {
        Ok(Decision::Run) => return Ok((leased_job, info, registration, message)),
        Ok(Decision::Duplicate) => Ending::Duplicate,
        Ok(Decision::Wait(wait)) => Ending::PutBack(wait),
        Ok(Decision::Finished) => {
            settle::completing(shared, &leased_job, &info, &HandlerOutput::default(), Ending::Duplicate).await
        }
        Err(error) => settle::hook_failed(&leased_job, &error),
    };
    over(leased_job, Some(info), ending)
}

async fn run(
    deliveries: &Deliveries,
    leased_job: Arc<LeasedJob>,
    info: Arc<JobInfo>,
    registration: &Registration,
    message: Box<dyn std::any::Any + Send>,
    done: &Done,
) -> Delivered {
    let shared = &deliveries.shared;
    let token = CancellationToken::new();
    let _cancelled_when_dropped = token.clone().drop_guard();
    let context = Context::new(Arc::clone(&info), Arc::clone(&leased_job), Arc::clone(shared), token.clone());
    let mut job = Job::new(Arc::clone(&info), Arc::clone(&shared.states), message);
    job.insert(context.clone());

    shared.events.tell(|| Event::Started { job: Arc::clone(&info) });
    let number = shared.enter(&leased_job);
    let started = Instant::now();
    let span = tracing::info_span!(
        "process",
        "otel.kind" = "consumer",
        "messaging.system" = "jobqueue",
        "messaging.operation.name" = "process",
        "messaging.destination.name" = %info.queue,
        "messaging.message.id" = %info.id,
        kind = %info.kind,
        attempt = info.attempt,
        trace = %info.trace.trace_id(),
    );
    let handler = AssertUnwindSafe(registration.service.clone().oneshot(job)).catch_unwind();
    let handler = crate::queue::trace::scope(info.trace, handler).instrument(span);
    let ended = supervise(shared, &leased_job, &token, handler).await;
    let ran = started.elapsed();
    if shared.leave(number).is_none() {
        // A shutdown has taken the message over and released it.
        let outcome = Outcome::Released(Duration::ZERO);
        return Delivered::Finished(Finished { job: Some(info), outcome, ran, error: None });
    }
    let ending = match ended {
        Ended::Returned(Ok(Ok(()))) => {
            done.handler_is_done();
            let left = std::mem::take(&mut *context.left());
            match settle::completing(shared, &leased_job, &info, &left, Ending::Done).await {
                Ending::Done if deliveries.delete_together(&leased_job) => {
                    return Delivered::Done { leased_job, job: info, ran };
                }
                ending => ending,
            }
        }
        Ended::Returned(Ok(Err(error))) => {
            Ending::Failed(recover(error), registration.defaults.backoff, Reason::ATTEMPTS_EXHAUSTED)
        }
        Ended::Returned(Err(panic)) => {
            let error = JobError::retry(format!("the handler panicked: {}", panic_text(&*panic)));
            Ending::Failed(error, registration.defaults.backoff, Reason::ATTEMPTS_EXHAUSTED)
        }
        Ended::Interrupted(Interruption::LeaseLost) => Ending::LeaseLost,
        Ended::Interrupted(Interruption::MaxRunTime) => {
            let limit = leased_job.core.options.max_run_time;
            let error = JobError::retry(format!("the job ran longer than the {limit:?} it may"));
            Ending::Failed(error, registration.defaults.backoff, Reason::ATTEMPTS_EXHAUSTED)
        }
        Ended::Interrupted(Interruption::Shutdown) => {
            shared.report().cancelled += 1;
            Ending::PutBack(Duration::ZERO)
        }
    };
    Delivered::Finished(settle::end(shared, &leased_job, Some(info), ending, ran).await)
}

type Returned = Result<Result<(), crate::BoxError>, Box<dyn std::any::Any + Send>>;

enum Ended {
    Returned(Returned),
    Interrupted(Interruption),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interruption {
    LeaseLost,
    MaxRunTime,
    Shutdown,
}

/// Runs the handler until it ends or has to; then gives it a short grace.
async fn supervise(
    shared: &Shared,
    leased_job: &LeasedJob,
    token: &CancellationToken,
    handler: impl Future<Output = Returned>,
) -> Ended {
    tokio::pin!(handler);
    let interruption = tokio::select! {
        biased;
        returned = &mut handler => {
            // The handler may have been told to stop while its last poll was running.
            return match interruption(leased_job) {
                Some(interruption) => interrupted(leased_job, interruption, returned),
                None => Ended::Returned(returned),
            };
        }
        () = leased_job.lease.lost().cancelled() => interruption(leased_job).unwrap_or(Interruption::LeaseLost),
        () = shared.cancel.cancelled() => Interruption::Shutdown,
    };
    token.cancel();
    match tokio::time::timeout(shared.options.cancel_grace, &mut handler).await {
        Ok(returned) => interrupted(leased_job, interruption, returned),
        Err(_) => Ended::Interrupted(interruption),
    }
}

/// What a handler leaves that returned after it was told to stop.
fn interrupted(leased_job: &LeasedJob, interruption: Interruption, returned: Returned) -> Ended {
    let counts = match interruption {
        // The lease is still held.
        Interruption::Shutdown => true,
        Interruption::LeaseLost => leased_job.lease.may_end_late(),
        Interruption::MaxRunTime => false,
    };
    match returned {
        Ok(Ok(())) if counts => Ended::Returned(Ok(Ok(()))),
        _ => Ended::Interrupted(interruption),
    }
}

fn interruption(leased_job: &LeasedJob) -> Option<Interruption> {
    leased_job.lease.loss().map(|loss| match loss {
        crate::lease::Loss::MaxRunTime => Interruption::MaxRunTime,
        crate::lease::Loss::Taken | crate::lease::Loss::Expired => Interruption::LeaseLost,
    })
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
