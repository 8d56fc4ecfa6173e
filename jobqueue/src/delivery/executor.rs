//! Runs one delivery from the received message to its report: decode, admit, run, settle.

use std::any::Any;
use std::ops::ControlFlow::{Break, Continue};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use scopeguard::guard;
use tokio_util::sync::CancellationToken;

use super::completion::Deletions;
use super::decode::{Incoming, inspect};
use super::disposition::{Disposition, NotRun};
use super::hook::AdmissionContext;
use super::leased_job::LeasedJob;
use super::registry::QueueHandlers;
use super::slot::{DeliverySlot, MessageClass};
use super::state::{DeliveryState, Snooze};
use crate::error::Error;
use crate::event::LossCause;
use crate::job::JobInfo;
use crate::job::outcome::{JobError, Outcome, Reason, chain, panic_text};
use crate::queue_core::QueueCore;
use crate::trace::TraceContext;

/// Runs the deliveries of one queue. The methods of each step are in its file: `admit.rs`, `done.rs` (was the
/// job completed before?), `run.rs`, `settle.rs` and `completion.rs`.
pub(crate) struct Executor {
    pub(crate) state: Arc<DeliveryState>,
    pub(crate) core: Arc<QueueCore>,
    pub(crate) handlers: Arc<QueueHandlers>,
    pub(crate) snooze: Arc<Snooze>,
    pub(crate) deletions: Arc<Deletions>,
    /// True if the worker runs until it is idle.
    pub(crate) until_idle: bool,
}

impl Executor {
    /// Runs a delivery to its end. `stop` fires when no further handler may start. It does not panic: if
    /// application code panics while the message is read, validated or run, the attempt counts as failed.
    ///
    /// # Cancel safety
    /// Dropping the future ends the lease.
    pub(crate) async fn deliver(
        &self,
        message: Box<Incoming>,
        slot: &dyn DeliverySlot,
        stop: &CancellationToken,
    ) -> DeliveryReport {
        let inspect = || self.handlers.with_kinds(|kinds| inspect(&self.core, *message, kinds));
        let inspected = catch_unwind(AssertUnwindSafe(inspect));
        let (leased_job, checked) = match inspected {
            Ok((leased_job, checked)) => (Arc::new(leased_job), checked),
            // The message becomes visible again when its lease runs out.
            Err(panic) => {
                let error = Some(panic_outside_handler(&*panic));
                return DeliveryReport { error, ..DeliveryReport::new(Duration::ZERO) };
            }
        };
        // Ends the lease with the delivery, even if the future is dropped half-way and the job is still
        // referenced: a context may outlive its worker.
        let _ends_lease = guard(&leased_job, |leased_job| leased_job.lease.abandon());
        let attempt = self.attempt(&leased_job, checked, slot, stop);
        match AssertUnwindSafe(attempt).catch_unwind().await {
            Ok(report) => report,
            Err(panic) => Box::pin(self.after_panic(&leased_job, slot, panic_outside_handler(&*panic))).await,
        }
    }

    async fn attempt(
        &self,
        leased_job: &Arc<LeasedJob>,
        checked: Result<(), NotRun>,
        slot: &dyn DeliverySlot,
        stop: &CancellationToken,
    ) -> DeliveryReport {
        let mut report = DeliveryReport::new(leased_job.times.waited());
        let admission = AdmissionContext { stop, until_idle: self.until_idle, slot, state: &self.state };
        let admitted = self.admit(leased_job, checked, admission, &mut report).await;
        let class = match &admitted {
            Continue(_) => MessageClass::Known,
            Break(disposition) => match **disposition {
                Disposition::Defer { cause, .. } if cause.is_for_others() && leased_job.fence() > 1 => {
                    MessageClass::UnknownAgain
                }
                Disposition::Defer { cause, .. } if cause.is_for_others() => MessageClass::Unknown,
                Disposition::OverLimit(_) => MessageClass::OverLimit,
                _ => MessageClass::Known,
            },
        };
        slot.classify(class);
        report.is_for_others = matches!(class, MessageClass::Unknown | MessageClass::UnknownAgain);
        let disposition = match admitted {
            Continue(runnable) => {
                report.attempted = true;
                // Boxed, so that neither this future nor the one of the run is too large for the allocator's
                // fast path.
                Box::pin(self.run(leased_job, runnable, slot, &mut report)).await
            }
            Break(disposition) => {
                slot.give_back();
                *disposition
            }
        };
        self.settle(leased_job, disposition, slot, report).await
    }

    /// Settles a delivery whose application code panicked. Calls no application code again.
    async fn after_panic(
        &self,
        leased_job: &Arc<LeasedJob>,
        slot: &dyn DeliverySlot,
        text: String,
    ) -> DeliveryReport {
        let job = leased_job.info().map(Arc::new);
        let disposition = match &job {
            // The next delivery finds out whether the job is done.
            _ if leased_job.lease.end_transactions() => Disposition::Release(Duration::ZERO),
            // The retry policy is not asked: it may be the code that panicked.
            Some(job) => self.judge(job, &JobError::retry(text), None, None),
            None => Disposition::Release(Duration::ZERO),
        };
        let report =
            DeliveryReport { job, attempted: true, ..DeliveryReport::new(leased_job.times.waited()) };
        self.settle(leased_job, disposition, slot, report).await
    }

    /// Puts back a message that was leased by a request already in flight when the worker was stopped.
    pub(crate) async fn put_back(&self, message: Box<Incoming>, slot: &dyn DeliverySlot) -> DeliveryReport {
        let (leased_job, _) = self.handlers.with_kinds(|kinds| inspect(&self.core, *message, kinds));
        let leased_job = Arc::new(leased_job);
        let job = leased_job.info().map(Arc::new);
        let report = DeliveryReport { job, ..DeliveryReport::new(leased_job.times.waited()) };
        self.settle(&leased_job, Disposition::Release(Duration::ZERO), slot, report).await
    }
}

#[derive(Debug)]
pub(crate) struct DeliveryReport {
    /// The job; `None` if the message could not be read as one.
    pub(crate) job: Option<Arc<JobInfo>>,
    /// The outcome; [`LeaseLost`](Outcome::LeaseLost) until the message is settled.
    pub(crate) outcome: Outcome,
    /// True if the job was admitted to its handler.
    pub(crate) attempted: bool,
    /// True if this worker cannot read the message, and another may.
    pub(crate) is_for_others: bool,
    /// True if a shutdown has cancelled the handler.
    pub(crate) cancelled: bool,
    /// The run time of the handler; zero if it did not run.
    pub(crate) ran: Duration,
    /// The time that the message waited until this delivery.
    pub(crate) waited: Duration,
    /// The error in one line.
    pub(crate) error: Option<String>,
    /// The cause of the loss of the lease; `None` if the lease is held, was given up by a shutdown, or ended
    /// with its message.
    pub(crate) lost: Option<LossCause>,
    /// The reason of an earlier end of the job, if its message is deleted without a run and the job was not
    /// completed.
    pub(crate) earlier_end: Option<Reason>,
    /// The code of a settlement that failed or is in doubt.
    pub(super) settle_error: Option<&'static str>,
    /// The trace context of the handler, if a tracer has created one.
    pub(super) process: Option<TraceContext>,
}

impl DeliveryReport {
    /// Returns the report of a delivery that has just begun; `waited` is the time until then.
    pub(super) fn new(waited: Duration) -> Self {
        Self {
            job: None,
            outcome: Outcome::LeaseLost,
            attempted: false,
            is_for_others: false,
            cancelled: false,
            ran: Duration::ZERO,
            waited,
            error: None,
            lost: None,
            earlier_end: None,
            settle_error: None,
            process: None,
        }
    }

    /// Records the result of settling the delivery. If it failed, the message becomes visible again when its
    /// lease runs out.
    pub(super) fn record_settlement(&mut self, leased_job: &LeasedJob, settled: Result<Outcome, Error>) {
        match settled {
            Ok(outcome) => {
                self.settle_error = match outcome {
                    Outcome::LeaseLost => Some("lease_lost"),
                    Outcome::Expired => Some("expired"),
                    Outcome::CompletedUncertain => Some("uncertain"),
                    _ => None,
                };
                self.outcome = outcome;
            }
            Err(error) => {
                self.settle_error = Some(error.kind().as_str());
                leased_job.lease.abandon();
                let text = chain(&error);
                crate::log::warn!(queue = %leased_job.core.name, job = leased_job.logged_id(), error = %text, "settling the delivery failed; unless it was settled all the same, or its lease is another worker's, the job is delivered again when its lease ends");
                self.outcome = Outcome::LeaseLost;
                self.error.get_or_insert(text);
            }
        }
    }
}

/// Returns the error text of a panic in application code other than the handler.
fn panic_outside_handler(panic: &(dyn Any + Send)) -> String {
    format!("a panic outside the handler: {}", panic_text(panic))
}
