//! Runs a handler until it returns or must stop.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::{Instrument, Span};

use super::context::{Context, HandlerOutput};
use super::decide::Ready;
use super::delivery::panic_text;
use super::ending::{Ending, Failure};
use super::hooks;
use super::presence::Entered;
use super::queue_worker::{DeliveryGuard, QueueWorker};
use super::shared::Shared;
use crate::event::Event;
use crate::handler::{Job, Registration, is_snooze, recover};
use crate::job::JobInfo;
use crate::job::outcome::{JobError, Reason, chain, printable};
use crate::lease::Loss;
use crate::queue::{LeasedJob, Rejection};
use crate::trace::{OpenSpan, Step, TraceContext};

/// The maximum length of ids and kinds in spans, in characters.
const MAX_ID_CHARS: usize = 1_024;

/// A run of a handler, or the end of a delivery without one.
pub(super) struct Ran {
    pub(super) ending: Ending,
    pub(super) ran: Duration,
    /// The context in which the handler has run, if a tracer has made it.
    pub(super) process: Option<TraceContext>,
}

impl Ran {
    /// Returns the end of a delivery whose handler did not run.
    pub(super) fn not(ending: Ending) -> Self {
        Self { ending, ran: Duration::ZERO, process: None }
    }
}

/// Runs the handler. Returns how the delivery ends and how long the handler ran.
pub(super) async fn run(
    worker: &QueueWorker,
    leased_job: &Arc<LeasedJob>,
    ready: Ready<'_>,
    guard: &DeliveryGuard,
) -> Ran {
    let Ready { job: mut info, registration, message } = ready;
    let shared = &worker.shared;
    if !leased_job.lease.may_begin() {
        // What it did could not be settled, and the job runs again elsewhere.
        return Ran::not(Ending::LeaseLost);
    }
    let (mut traced, process) = open_span(shared, leased_job, &mut info);
    let started = Instant::now();
    let shown = shared.show(&info, started, leased_job.settings.timeout);
    let run = shown.as_ref().map(|shown| Arc::clone(&shown.run));
    let context = Context::new(Arc::clone(&info), Arc::clone(leased_job), worker, run);
    let _stopped_when_dropped = StopWhenDropped(&context);
    shared.events.tell(|| Event::Started { job: Arc::clone(&info), waited: leased_job.waited() });
    let number = shared.enter(leased_job);
    let called = call(registration, (&info, message), shared, context.clone());
    let is_logged = process.is_none() || shared.events.log_spans();
    let ended = {
        // Each is pinned here: a future that is moved into another one lies in this one twice.
        let handler = pin!(crate::queue::trace::scope(info.trace, called));
        // The span is made inside that of the tracer, so that it becomes its child.
        let logged = async { handler.instrument(if is_logged { span(&info) } else { Span::none() }).await };
        let logged = pin!(logged);
        let traced = pin!(traced.run(logged));
        supervise(shared, leased_job, (&context, shown.as_ref()), traced).await
    };
    let ran = started.elapsed();
    traced.end(None, ended.error());
    drop(shown);
    if shared.leave(number).is_none() {
        // A shutdown has taken over the message and released it.
        guard.is_taken_over();
        return Ran { ending: Ending::TakenOver(info), ran, process };
    }
    // A message whose lease has expired must be deleted before the slot is free: this worker might receive it again.
    if ended.is_success() && leased_job.lease.loss().is_none() {
        guard.handler_is_done();
    }
    let ending = conclude(shared, leased_job, (info, registration), &context, ended).await;
    Ran { ending, ran, process }
}

/// Tells the handler, and what it has started, to stop when the delivery ends, also half-way.
struct StopWhenDropped<'c>(&'c Context);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Calls the handler through its layers.
fn call(
    registration: &Registration,
    (info, message): (&Arc<JobInfo>, Box<dyn Any + Send>),
    shared: &Shared,
    context: Context,
) -> impl Future<Output = Returned> + Send + use<> {
    let mut job = Job::new(Arc::clone(info), Arc::clone(&shared.states), message);
    job.insert(context);
    AssertUnwindSafe(registration.service.clone().oneshot(job)).catch_unwind()
}

/// Returns the ending of a delivery whose handler has ended. After a success it calls the hooks.
async fn conclude(
    shared: &Shared,
    leased_job: &LeasedJob,
    (info, registration): (Arc<JobInfo>, &Registration),
    context: &Context,
    ended: Ended,
) -> Ending {
    match ended {
        Ended::Returned(Ok(Ok(()))) => {
            let output = std::mem::take(&mut *context.left());
            finish(shared, leased_job, info, &output).await
        }
        Ended::Returned(Ok(Err(error))) => failed(info, registration, recover(error)),
        Ended::Returned(Err(panic)) => {
            let text = format!("the handler panicked: {}", panic_text(&*panic));
            failed(info, registration, JobError::retry(text))
        }
        Ended::Cancelled(error) => cancelled(shared, &info, Some(&error)),
        Ended::Interrupted(interruption) => {
            after_interruption(shared, leased_job, interruption, info, registration)
        }
    }
}

/// Starts the tracer's span of a handler, and gives its context to the job.
fn open_span(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &mut Arc<JobInfo>,
) -> (OpenSpan, Option<TraceContext>) {
    if !shared.events.trace() {
        return (OpenSpan::none(), None);
    }
    let (sender, state, is_first) = leased_job.sender();
    let is_first = is_first && job.attempt == 1;
    let span = shared.events.span(|| Step::Process { job, sender, tracestate: state.as_deref(), is_first });
    let process = span.context();
    if let Some(context) = process {
        Arc::make_mut(job).trace = context;
    }
    (span, process)
}

/// Returns the ending of a delivery whose handler was interrupted and did not return in time.
fn after_interruption(
    shared: &Shared,
    leased_job: &LeasedJob,
    interruption: Interruption,
    info: Arc<JobInfo>,
    registration: &Registration,
) -> Ending {
    match interruption {
        Interruption::LeaseLost => Ending::LeaseLost,
        Interruption::Cancelled => cancelled(shared, &info, None),
        Interruption::MaxRunTime => {
            let limit = leased_job.core.options.max_run_time;
            let text = format!("the job exceeded its maximum run time of {limit:?}");
            failed(info, registration, JobError::retry(text))
        }
        Interruption::Shutdown => {
            shared.report().cancelled += 1;
            Ending::Released(Duration::ZERO)
        }
    }
}

fn failed(job: Arc<JobInfo>, registration: &Registration, error: JobError) -> Ending {
    Ending::Failed(job, Failure::of_handler(error, registration.defaults.backoff))
}

/// Ends a job that an operator has cancelled and whose handler has not succeeded all the same; `error` is what it returned.
fn cancelled(shared: &Shared, job: &JobInfo, error: Option<&str>) -> Ending {
    let by = shared.cancelled(job).unwrap_or_else(|| Rejection::new(Reason::CANCELLED, "cancelled"));
    Ending::Rejected(match error {
        Some(error) => Rejection::new(by.reason, format!("{}; the handler returned: {error}", by.detail)),
        None => by,
    })
}

/// Ends a job whose handler has finished: calls the hooks. The message stays until all of them have succeeded.
async fn finish(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: Arc<JobInfo>,
    output: &HandlerOutput,
) -> Ending {
    match hooks::completing(shared, leased_job, &job, output).await {
        Ok(()) => Ending::Done(job),
        Err(ending) => {
            output.keep_with(leased_job);
            ending
        }
    }
}

fn span(info: &JobInfo) -> tracing::Span {
    tracing::info_span!(
        "process",
        "otel.kind" = "consumer",
        "messaging.system" = "jobqueue",
        "messaging.operation.name" = "process",
        "messaging.destination.name" = %info.queue,
        "messaging.message.id" = printable(&info.id, MAX_ID_CHARS),
        kind = printable(&info.kind, MAX_ID_CHARS),
        attempt = info.attempt,
        trace = %info.trace.trace_id(),
    )
}

type Returned = Result<Result<(), crate::job::BoxError>, Box<dyn std::any::Any + Send>>;

enum Ended {
    Returned(Returned),
    /// An operator has cancelled the job, and the handler has returned this error then.
    Cancelled(String),
    Interrupted(Interruption),
}

impl Ended {
    fn is_success(&self) -> bool {
        matches!(self, Self::Returned(Ok(Ok(()))))
    }

    /// Returns the code of the failure; `None` after a success and for a handler that comes back later.
    fn error(&self) -> Option<&'static str> {
        match self {
            Self::Returned(Ok(Ok(()))) => None,
            Self::Returned(Ok(Err(error))) => (!is_snooze(error)).then_some("handler_error"),
            Self::Returned(Err(_)) => Some("panic"),
            Self::Cancelled(_) | Self::Interrupted(Interruption::Cancelled) => Some("cancelled"),
            Self::Interrupted(Interruption::LeaseLost) => Some("lease_lost"),
            Self::Interrupted(Interruption::MaxRunTime) => Some("max_run_time"),
            Self::Interrupted(Interruption::Shutdown) => Some("shutdown"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Interruption {
    LeaseLost,
    MaxRunTime,
    Cancelled,
    Shutdown,
}

/// Runs the handler until it returns or must stop; in the latter case gives it the cancel grace, as long as nobody else has the job.
async fn supervise(
    shared: &Shared,
    leased_job: &LeasedJob,
    (context, shown): (&Context, Option<&Entered<'_>>),
    mut handler: Pin<&mut impl Future<Output = Returned>>,
) -> Ended {
    // In blocks, so that no token is made for a handler that does not wait.
    let lost = async { leased_job.lease.lost().cancelled().await };
    let cancelled = async {
        match shown {
            Some(shown) => shown.tracker.cancelled(&shown.run).await,
            None => std::future::pending().await,
        }
    };
    let interruption = tokio::select! {
        biased;
        returned = &mut handler => {
            // The token may have fired during the handler's last poll.
            return match interruption(leased_job) {
                Some(interruption) => interrupted(leased_job, interruption, returned),
                None => Ended::Returned(returned),
            };
        }
        () = lost => interruption(leased_job).unwrap_or(Interruption::LeaseLost),
        () = shared.cancel.cancelled() => Interruption::Shutdown,
        () = cancelled => Interruption::Cancelled,
    };
    context.stop();
    // Boxed, because most handlers are not interrupted.
    let returned = Box::pin(in_grace(leased_job, shared.options.cancel_grace, handler)).await;
    let interruption = match (interruption, leased_job.lease.loss()) {
        // The lease was held when the handler was interrupted, and is lost since.
        (Interruption::Shutdown | Interruption::Cancelled, Some(Loss::Taken | Loss::Expired)) => {
            Interruption::LeaseLost
        }
        _ => interruption,
    };
    match returned {
        Some(returned) => interrupted(leased_job, interruption, returned),
        None => Ended::Interrupted(interruption),
    }
}

/// Waits for a handler whose token has fired, for its grace at most. During a shutdown or a cancellation the lease is still renewed. As
/// soon as it is lost, however, the handler has time until shortly before another worker can get the message.
async fn in_grace(
    leased_job: &LeasedJob,
    grace: Duration,
    handler: Pin<&mut impl Future<Output = Returned>>,
) -> Option<Returned> {
    let lost = async {
        leased_job.lease.lost().cancelled().await;
        tokio::time::sleep(leased_job.lease.grace(grace)).await;
    };
    tokio::select! {
        biased;
        returned = handler => Some(returned),
        () = tokio::time::sleep(grace) => None,
        () = lost => None,
    }
}

/// Returns the end of a handler that returned after its token had fired.
fn interrupted(leased_job: &LeasedJob, interruption: Interruption, returned: Returned) -> Ended {
    let counts = match interruption {
        // The lease is still held.
        Interruption::Shutdown | Interruption::Cancelled => true,
        Interruption::LeaseLost => leased_job.lease.may_end_late(),
        Interruption::MaxRunTime => false,
    };
    match returned {
        Ok(Ok(())) if counts => Ended::Returned(Ok(Ok(()))),
        Ok(Err(error)) if interruption == Interruption::Cancelled => Ended::Cancelled(chain(&*error)),
        _ => Ended::Interrupted(interruption),
    }
}

fn interruption(leased_job: &LeasedJob) -> Option<Interruption> {
    leased_job.lease.loss().map(|loss| match loss {
        Loss::MaxRunTime => Interruption::MaxRunTime,
        Loss::Taken | Loss::Expired => Interruption::LeaseLost,
    })
}
