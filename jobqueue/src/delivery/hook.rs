//! Hooks around deliveries: asked before a handler runs, called before a message is settled.
//!
//! Deliveries know only this trait. The crate root gives the worker the implementations.

use std::fmt;
use std::pin::{Pin, pin};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;

use super::disposition::{Disposition, Rejection};
use super::handler_output::HandlerOutput;
use super::leased_job::LeasedJob;
use super::slot::DeliverySlot;
use super::state::DeliveryState;
use crate::error::Error;
use crate::job::JobInfo;
use crate::storage::{MessageId, Storage};

/// The time that a preparation may still take after the stop, so that a record that it writes is complete if
/// the storage answers. It is over before the shutdown settles or abandons deliveries.
const PREPARATION_STOP_GRACE: Duration = Duration::from_secs(1);

/// The delivery for which a hook is called.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HookContext<'a> {
    /// The storage of the worker's queues.
    pub(crate) storage: &'a Storage,
    pub(crate) job: &'a JobInfo,
    /// The id of the stored message. All its deliveries share it; a second copy of the job has another.
    pub(crate) message: &'a MessageId,
    pub(crate) leased_job: &'a LeasedJob,
}

/// The parts of a delivery that a hook needs to wait before the handler runs.
#[derive(Clone, Copy)]
pub(crate) struct AdmissionContext<'a> {
    /// Fires when no further handler may start.
    pub(crate) stop: &'a CancellationToken,
    /// True if the worker runs until it is idle.
    pub(crate) until_idle: bool,
    pub(crate) slot: &'a dyn DeliverySlot,
    pub(super) state: &'a DeliveryState,
}

impl AdmissionContext<'_> {
    /// Frees the slot for another delivery until [`DeliverySlot::take`].
    pub(crate) fn leave_slot(&self) {
        self.slot.give_back();
        self.slot.leave();
    }

    /// Awaits the preparation of a job. Returns `None` if it has no result shortly after the stop: no handler
    /// may begin any more, and a request without an answer must not hold up the shutdown. The next delivery
    /// repeats what a dropped preparation has begun, as after a crash.
    pub(super) async fn with_stop_grace<F: Future>(&self, preparation: Pin<&mut F>) -> Option<F::Output> {
        let given_up = async {
            self.stop.cancelled().await;
            // Boxed, because most preparations end before the stop.
            Box::pin(tokio::time::sleep(PREPARATION_STOP_GRACE)).await;
        };
        tokio::select! {
            biased;
            prepared = preparation => Some(prepared),
            () = given_up => None,
        }
    }

    /// Returns the rejection of a job that an operator has cancelled; `None` for any other job, and if the
    /// handler finished in an earlier delivery.
    pub(crate) fn cancelled(&self, leased_job: &LeasedJob, job: &JobInfo) -> Option<Rejection> {
        self.state.cancelled(job).filter(|_| !HandlerOutput::is_kept(leased_job))
    }

    /// Waits until [`cancelled`](Self::cancelled) returns a rejection. Cancel-safe.
    pub(crate) async fn until_cancelled(&self, leased_job: &LeasedJob, job: &JobInfo) {
        let Some(tracker) = self.state.tracker() else { return std::future::pending().await };
        loop {
            let mut changed = pin!(tracker.requests_changed());
            // Enabled before the requests are checked, so that no change is missed.
            changed.as_mut().enable();
            if self.cancelled(leased_job, job).is_some() {
                return;
            }
            changed.await;
        }
    }
}

/// The answer of a hook before the handler runs.
#[derive(Debug)]
pub(crate) enum HookAnswer {
    /// The handler may run.
    Run,
    /// The handler does not run. [`Discard`](Disposition::Discard) means that the job is already done,
    /// [`DiscardCancelled`](Disposition::DiscardCancelled) that it never runs.
    Settle(Disposition),
}

impl HookAnswer {
    /// Returns the answer that the message is put back for `wait`, without counting an attempt.
    pub(crate) fn release(wait: Duration) -> Self {
        Self::Settle(Disposition::Release(wait))
    }
}

/// The end of a job for its hooks.
#[derive(Debug, Clone, Copy)]
pub(crate) enum JobEnd<'a> {
    /// The handler has finished. `handed_over` is true if another message continues the job, so that the job
    /// ends later.
    Completed { result: Option<&'a RawValue>, handed_over: bool },
    /// The job was done before, and its message does not run.
    Discarded,
    /// The job has failed for good, and its message becomes a dead letter; or the job was cancelled.
    Failed(&'a Rejection),
}

impl<'a> From<&'a HandlerOutput> for JobEnd<'a> {
    fn from(output: &'a HandlerOutput) -> Self {
        Self::Completed { result: output.result.as_deref(), handed_over: output.handed_over }
    }
}

/// Work before and after a handler. If a hook fails, the message stays in its queue and is delivered again.
#[async_trait]
pub(crate) trait Hook: fmt::Debug + Send + Sync + 'static {
    /// Returns whether this hook applies to the job. Most jobs have no hooks.
    fn applies_to(&self, job: &JobInfo) -> bool;

    /// Returns whether the hook must admit the job before its payload or checkpoint is read from a blob. Until
    /// then the message may be received many times.
    fn decides_first(&self, _: &JobInfo) -> bool {
        false
    }

    /// Decides whether the handler may run.
    async fn admit(
        &self,
        hook_context: HookContext<'_>,
        admission: AdmissionContext<'_>,
    ) -> Result<HookAnswer, Error>;

    /// Called before the message of an ended job leaves its queue.
    async fn ending(&self, hook_context: HookContext<'_>, end: JobEnd<'_>) -> Result<(), Error>;

    /// Returns whether the hook has recorded that the job is done. If so, no message of the job becomes a
    /// dead letter.
    async fn is_done_elsewhere(&self, _: HookContext<'_>) -> Result<bool, Error> {
        Ok(false)
    }
}
