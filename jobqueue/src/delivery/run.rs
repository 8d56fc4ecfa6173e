//! Runs a handler until it returns or must stop, and decides the disposition of its message.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::Instant;
use tracing::Span;

use super::admit::{RunnableJob, too_late};
use super::context::Context;
use super::deferral::{DeferralCause, end_wait_for_run, may_wait_for_outage};
use super::disposition::{Disposition, Rejection};
use super::executor::{DeliveryReport, Executor};
use super::handler_output::HandlerOutput;
use super::in_transaction::has_committed;
use super::leased_job::LeasedJob;
use super::slot::DeliverySlot;
use crate::event::Event;
use crate::handler::erased::{is_outage, is_snooze};
use crate::handler::{Job, recover};
use crate::job::outcome::{JobError, Reason, Verdict, chain, panic_text, printable};
use crate::job::{Backoff, BoxError, JobInfo};
use crate::lease::Loss;
use crate::log::{LogSpan, MAX_ID_CHARS};
use crate::presence::TrackedRun;
use crate::storage::MAX_VISIBILITY;
use crate::trace::{OpenSpan, Step};

const NOT_COMMITTED: &str = "the transaction in which the handler has completed the job did not commit";

/// The reason why a handler has not succeeded.
enum HandlerEnd {
    /// The handler, or a layer around it, returned this error.
    Failed(BoxError),
    Panicked(Box<dyn Any + Send>),
    /// An operator has cancelled the job. The text is the handler's error, if it returned an error.
    Cancelled(Option<String>),
    LeaseLost,
    MaxRunTime,
    Shutdown,
}

type Returned = Result<Result<(), BoxError>, Box<dyn Any + Send>>;

impl HandlerEnd {
    fn of(returned: Returned) -> Result<(), Self> {
        returned.map_err(Self::Panicked)?.map_err(Self::Failed)
    }

    /// Returns the code of the failure; `None` if the handler asked for a later delivery.
    fn code(&self) -> Option<&'static str> {
        match self {
            Self::Failed(error) => (!is_snooze(error)).then_some("handler_error"),
            Self::Panicked(_) => Some("panic"),
            Self::Cancelled(_) => Some("cancelled"),
            Self::LeaseLost => Some("lease_lost"),
            Self::MaxRunTime => Some("max_run_time"),
            Self::Shutdown => Some("shutdown"),
        }
    }
}

impl Executor {
    /// Runs the handler, and returns the disposition of the message. Writes the handler's run time into the
    /// report.
    pub(super) async fn run(
        &self,
        leased_job: &Arc<LeasedJob>,
        runnable: RunnableJob<'_>,
        slot: &dyn DeliverySlot,
        report: &mut DeliveryReport,
    ) -> Disposition {
        let RunnableJob { mut info, registration, message } = runnable;
        let state = &self.state;
        if !leased_job.lease.begin_run() {
            return too_late(leased_job);
        }
        end_wait_for_run(leased_job);
        let mut process_span = self.trace(leased_job, &mut info, report);
        let started = Instant::now();
        let record = state.tracker().map(|tracker| tracker.begin(&info, started, leased_job.times.hidden));
        let run = record.as_ref().map(|record| Arc::clone(&record.run));
        let context = Context::new(Arc::clone(&info), Arc::clone(leased_job), state, &self.snooze, run);
        // Fires the token for the handler and for the tasks that it has started, even if this future is
        // dropped.
        let _stopped_when_dropped = scopeguard::guard(&context, Context::stop);
        state.events.emit(|| Event::Started { job: Arc::clone(&info), waited: leased_job.times.waited() });
        let running = state.enter(leased_job);
        let job = Job::new(Arc::clone(&info), Arc::clone(&state.states), context.erased(), message);
        let called = AssertUnwindSafe(registration.service.clone().oneshot(job)).catch_unwind();
        let is_logged = report.process.is_none() || state.events.log_spans();
        let ended = {
            // Each future is pinned here: moving a future into another stores it twice.
            let handler = pin!(crate::trace::scope(info.trace, called));
            // The log span is created inside the tracer's span, so that it becomes its child.
            let logged = async {
                LogSpan::new(|| if is_logged { log_span(&info) } else { Span::none() }).run(handler).await
            };
            let logged = pin!(logged);
            let traced = pin!(process_span.run(logged));
            self.supervise(leased_job, &context, record.as_ref(), traced).await
        };
        report.ran = started.elapsed();
        process_span.end(None, ended.as_ref().err().and_then(HandlerEnd::code));
        drop(record);
        if !running.leave() {
            return Disposition::Abandon;
        }
        let is_slot_free = ended.is_ok() && slot.handler_is_done();
        let output = std::mem::take(&mut *context.output());
        let ended = if leased_job.lease.end_transactions() {
            // Boxed, because few handlers complete their jobs themselves.
            Box::pin(after_transaction(leased_job, ended, output)).await
        } else {
            ended.map(|()| output)
        };
        report.cancelled = matches!(ended, Err(HandlerEnd::Shutdown));
        self.conclude(leased_job, &info, registration.defaults.backoff, ended, is_slot_free).await
    }

    /// Returns the disposition of the message after its handler has ended. `backoff` is declared by the
    /// message type. After a success the hooks are called, and the message stays until all of them have
    /// succeeded.
    #[allow(clippy::too_many_arguments, reason = "each is what the run has left")]
    async fn conclude(
        &self,
        leased_job: &LeasedJob,
        info: &JobInfo,
        backoff: Option<Backoff>,
        ended: Result<HandlerOutput, HandlerEnd>,
        is_slot_free: bool,
    ) -> Disposition {
        match ended {
            Ok(output) => {
                match self.state.completing_after_run(leased_job, info, &output, is_slot_free).await {
                    Ok(()) => Disposition::Complete,
                    Err(disposition) => {
                        output.keep_with(leased_job);
                        *disposition
                    }
                }
            }
            Err(HandlerEnd::Failed(error)) => self.after_failure(leased_job, info, error, backoff),
            Err(HandlerEnd::Panicked(panic)) => {
                let text = format!("the handler panicked: {}", panic_text(&*panic));
                self.judge_by_policy(info, &JobError::retry(text), backoff)
            }
            Err(HandlerEnd::MaxRunTime) => {
                let limit = leased_job.lease.max_run_time();
                let text = format!("the job exceeded its maximum run time of {limit:?}");
                self.judge_by_policy(info, &JobError::retry(text), backoff)
            }
            Err(HandlerEnd::Cancelled(error)) => self.after_cancellation(info, error.as_deref()),
            Err(HandlerEnd::LeaseLost) => Disposition::Abandon,
            Err(HandlerEnd::Shutdown) => Disposition::Release(Duration::ZERO),
        }
    }

    /// Starts the tracer's span of a handler, and writes its context into the job and the report.
    fn trace(
        &self,
        leased_job: &LeasedJob,
        info: &mut Arc<JobInfo>,
        report: &mut DeliveryReport,
    ) -> OpenSpan {
        // Makes the job uniquely owned, so that writing the tracer's context does not copy it.
        report.job = None;
        let events = &self.state.events;
        let process_span = if events.trace() {
            let job: &JobInfo = info;
            let (sender, tracestate) = leased_job.sender();
            let is_first = leased_job.is_first_attempt() && job.attempt == 1;
            let tracestate = tracestate.as_deref();
            events.span(|| Step::Process { job, sender, tracestate, is_first })
        } else {
            OpenSpan::none()
        };
        report.process = process_span.context();
        if let Some(context) = report.process {
            Arc::make_mut(info).trace = context;
        }
        report.job = Some(Arc::clone(info));
        process_span
    }

    /// Returns the disposition of a job that an operator has cancelled and whose handler has not succeeded;
    /// `error` is the handler's error.
    fn after_cancellation(&self, job: &JobInfo, error: Option<&str>) -> Disposition {
        let cancelled = self.state.cancelled(job);
        let by = cancelled.unwrap_or_else(|| Rejection::new(Reason::CANCELLED, "cancelled"));
        Disposition::DeadLetter(match error {
            Some(error) => Rejection::new(by.reason, format!("{}; the handler returned: {error}", by.detail)),
            None => by,
        })
    }

    /// Returns the disposition for an error that the handler returned. Failing because of a storage outage
    /// costs no attempt for a day, unless the application's policy decides about the error.
    fn after_failure(
        &self,
        leased_job: &LeasedJob,
        job: &JobInfo,
        error: BoxError,
        backoff: Option<Backoff>,
    ) -> Disposition {
        let is_outage = is_outage(&error);
        let error = recover(error);
        let decided = self.ask_policy(job, &error);
        if is_outage && decided.is_none() && may_wait_for_outage(leased_job) {
            return Disposition::Defer { cause: DeferralCause::Outage, detail: error.chain() };
        }
        self.judge(job, &error, backoff, decided)
    }

    fn judge_by_policy(&self, job: &JobInfo, error: &JobError, backoff: Option<Backoff>) -> Disposition {
        self.judge(job, error, backoff, self.ask_policy(job, error))
    }

    /// Asks the application's policy about a failed attempt. A snooze is not a failed attempt. If the policy
    /// panics, the error's own verdict applies.
    fn ask_policy(&self, job: &JobInfo, error: &JobError) -> Option<Verdict> {
        if matches!(error.verdict(), Verdict::Snooze(_)) {
            return None;
        }
        let policy = self.state.options.retry_policy.as_ref()?;
        catch_unwind(AssertUnwindSafe(|| policy(error, job))).unwrap_or_else(|_| {
            crate::log::error!(queue = %job.queue, "the retry policy panicked; the error's own verdict applies");
            None
        })
    }

    /// Returns the disposition for a failed attempt. `backoff` is declared by the message type, if at all;
    /// `decided` is the verdict of the application's policy.
    pub(super) fn judge(
        &self,
        job: &JobInfo,
        error: &JobError,
        backoff: Option<Backoff>,
        decided: Option<Verdict>,
    ) -> Disposition {
        let verdict = match decided.unwrap_or_else(|| error.verdict()) {
            // Another job of the same call may have caused the error.
            Verdict::DeadLetter if error.is_shared() => Verdict::Retry,
            verdict => verdict,
        };
        let has_cause = !error.is_without_cause();
        let (reason, error) = (error.reason().cloned(), error.chain());
        let wait = match verdict {
            Verdict::Snooze(wait) => return Disposition::Snooze { wait, error, has_cause },
            Verdict::DeadLetter => {
                let reason = reason.unwrap_or(Reason::REJECTED);
                return Disposition::DeadLetter(Rejection::of_attempt(reason, error));
            }
            _ if job.attempt >= job.max_attempts => {
                return Disposition::DeadLetter(Rejection::of_attempt(Reason::ATTEMPTS_EXHAUSTED, error));
            }
            Verdict::RetryAfter(wait) => wait.min(MAX_VISIBILITY),
            // `Retry`. The enum is non-exhaustive: an unknown verdict must keep the job, too.
            _ => backoff.unwrap_or_default().delay(job.attempt, self.core.runtime()),
        };
        Disposition::Retry { wait, error }
    }

    /// Runs the handler until it returns or must stop. A handler that must stop has the cancel grace to
    /// return, as long as no other worker can have the job.
    async fn supervise(
        &self,
        leased_job: &LeasedJob,
        context: &Context,
        record: Option<&TrackedRun<'_>>,
        mut handler: Pin<&mut impl Future<Output = Returned>>,
    ) -> Result<(), HandlerEnd> {
        // In `async` blocks, so that no token is created for a handler that returns at its first poll.
        let must_stop = async { leased_job.lease.stop_token().cancelled().await };
        let cancelled = async {
            match record {
                Some(record) => record.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let interruption = tokio::select! {
            biased;
            returned = &mut handler => {
                // The token may have fired during the handler's last poll; at a shutdown, the handler may
                // also have seen the token of another job of the same call.
                let shutdown = self.state.cancel.is_cancelled().then_some(HandlerEnd::Shutdown);
                return match interruption_by_lease(leased_job).or(shutdown) {
                    // The handler returned before it was interrupted, and the lease is still held.
                    None | Some(HandlerEnd::MaxRunTime) => HandlerEnd::of(returned),
                    Some(interruption) => end_of_interrupted(interruption, Some(returned)),
                };
            }
            () = must_stop => interruption_by_lease(leased_job).unwrap_or(HandlerEnd::LeaseLost),
            () = self.state.cancel.cancelled() => HandlerEnd::Shutdown,
            () = cancelled => HandlerEnd::Cancelled(None),
        };
        context.stop();
        // Boxed, because most handlers are not interrupted.
        let returned = Box::pin(wait_for_grace(leased_job, self.state.options.cancel_grace, handler)).await;
        let interruption = match (interruption, leased_job.lease.loss()) {
            // The lease was held when the handler was interrupted, and has been lost since.
            (
                HandlerEnd::Shutdown | HandlerEnd::Cancelled(_) | HandlerEnd::MaxRunTime,
                Some(Loss::Taken | Loss::Expired),
            ) => HandlerEnd::LeaseLost,
            (interruption, _) => interruption,
        };
        end_of_interrupted(interruption, returned)
    }
}

/// Returns the end of a handler that has written the completion of its job in a transaction. The outcome of
/// the transaction decides, whatever the handler returned. If the handler has sent a batch after that, the
/// batch still continues the job.
async fn after_transaction(
    leased_job: &LeasedJob,
    ended: Result<(), HandlerEnd>,
    last_output: HandlerOutput,
) -> Result<HandlerOutput, HandlerEnd> {
    match has_committed(leased_job).await {
        Ok(true) => {
            let mut output = HandlerOutput::kept_with(leased_job).unwrap_or_default();
            output.handed_over |= last_output.handed_over;
            Ok(output)
        }
        Ok(false) => ended.and_then(|()| Err(HandlerEnd::Failed(NOT_COMMITTED.into()))),
        Err(_) => Err(HandlerEnd::LeaseLost),
    }
}

fn log_span(info: &JobInfo) -> Span {
    tracing::info_span!(
        // Documented: filters name it.
        target: "jobqueue::worker::run",
        "process",
        queue = %info.queue,
        job = printable(&info.id, MAX_ID_CHARS),
        kind = printable(&info.kind, MAX_ID_CHARS),
        attempt = info.attempt,
        trace = %info.trace.trace_id(),
    )
}

/// Waits for an interrupted handler for at most `grace`, and keeps renewing the lease. If the lease is lost,
/// waits only until shortly before another worker can get the message.
async fn wait_for_grace(
    leased_job: &LeasedJob,
    grace: Duration,
    handler: Pin<&mut impl Future<Output = Returned>>,
) -> Option<Returned> {
    leased_job.lease.renew_for(grace);
    let lost = async {
        leased_job.lease.ended().await;
        tokio::time::sleep(leased_job.lease.grace(grace)).await;
    };
    tokio::select! {
        biased;
        returned = handler => Some(returned),
        () = tokio::time::sleep(grace) => None,
        () = lost => None,
    }
}

/// Returns the end of a handler that was interrupted: it returned after its token had fired, or did not
/// return in time.
fn end_of_interrupted(interruption: HandlerEnd, returned: Option<Returned>) -> Result<(), HandlerEnd> {
    match (returned, interruption) {
        // The lease is still held.
        (Some(Ok(Ok(()))), HandlerEnd::Shutdown | HandlerEnd::Cancelled(_) | HandlerEnd::MaxRunTime) => {
            Ok(())
        }
        (Some(Ok(Err(error))), HandlerEnd::Cancelled(_)) => Err(HandlerEnd::Cancelled(Some(chain(&*error)))),
        (_, interruption) => Err(interruption),
    }
}

/// Returns why the handler must stop, if its lease is the cause.
fn interruption_by_lease(leased_job: &LeasedJob) -> Option<HandlerEnd> {
    leased_job.lease.loss().map(|loss| match loss {
        Loss::MaxRunTime => HandlerEnd::MaxRunTime,
        Loss::Taken | Loss::Expired => HandlerEnd::LeaseLost,
    })
}
