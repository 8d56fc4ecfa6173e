//! Calls the hooks, and decides the disposition of a message whose hook has failed.

use std::ops::ControlFlow::{self, Break, Continue};
use std::time::Duration;

use tokio::time::Instant;

use super::deferral::DeferralCause;
use super::disposition::{Disposition, NotRun, Rejection};
use super::handler_output::HandlerOutput;
use super::hook::{AdmissionContext, Hook, HookAnswer, HookContext, JobEnd};
use super::leased_job::LeasedJob;
use super::message_changes::{may_succeed_soon, no_answer};
use super::state::DeliveryState;
use crate::error::{Error, ErrorKind};
use crate::job::JobInfo;
use crate::job::outcome::chain;

/// The time for calling hooks after the run: by a delivery that has freed its slot, and by a delivery that
/// still has it.
const HOOK_TIME: Duration = Duration::from_secs(60);
const HOOK_TIME_IN_SLOT: Duration = Duration::from_secs(5);

impl DeliveryState {
    pub(super) fn has_hooks(&self, job: &JobInfo) -> bool {
        self.hooks_of(job).next().is_some()
    }

    pub(super) fn decide_first(&self, job: &JobInfo) -> bool {
        self.hooks_of(job).any(|hook| hook.decides_first(job))
    }

    /// Asks the hooks whether the handler may run, and breaks if one of them decides otherwise or fails. Asks
    /// them in reverse: the FIFO hook, which may wait for the job's turn, comes before the hooks whose answers
    /// could go stale during that wait.
    pub(super) async fn admit(
        &self,
        leased_job: &LeasedJob,
        job: &JobInfo,
        admission: AdmissionContext<'_>,
    ) -> ControlFlow<NotRun> {
        for hook in self.hooks_of(job).rev() {
            match hook.admit(self.hook_context(leased_job, job), admission).await {
                Ok(HookAnswer::Run) => {}
                Ok(HookAnswer::Settle(disposition)) => return Break(Box::new(disposition)),
                Err(error) => return Break(failed(leased_job, &error, DeferralCause::BrokenAdmission)),
            }
        }
        Continue(())
    }

    /// Calls the hooks because the job has ended. If a hook fails, returns the disposition of the message
    /// instead.
    pub(super) async fn ending(
        &self,
        leased_job: &LeasedJob,
        job: &JobInfo,
        end: JobEnd<'_>,
    ) -> Result<(), NotRun> {
        let called = self.call_ending(leased_job, job, end).await;
        called.map_err(|error| failed(leased_job, &error, DeferralCause::BrokenHook))
    }

    async fn call_ending(&self, leased_job: &LeasedJob, job: &JobInfo, end: JobEnd<'_>) -> Result<(), Error> {
        for hook in self.hooks_of(job) {
            hook.ending(self.hook_context(leased_job, job), end).await?;
        }
        Ok(())
    }

    pub(super) async fn dead_lettering(
        &self,
        leased_job: &LeasedJob,
        job: &JobInfo,
        rejection: &Rejection,
    ) -> Result<(), NotRun> {
        self.ending(leased_job, job, JobEnd::Failed(rejection)).await
    }

    /// Calls the hooks right after the run, and retries them for up to a minute while they may succeed soon:
    /// a message that is put back must keep the handler's output, and may have no space for it. If it has
    /// space and the slot is still occupied, other jobs may be waiting for the slot, and the time is only 5
    /// seconds. A call that is cut short may or may not have been applied; the next delivery calls the hooks
    /// again.
    pub(super) async fn completing_after_run(
        &self,
        leased_job: &LeasedJob,
        job: &JobInfo,
        output: &HandlerOutput,
        is_slot_free: bool,
    ) -> Result<(), NotRun> {
        if !self.has_hooks(job) {
            return Ok(());
        }
        let time = if is_slot_free || output.to_json().is_err() { HOOK_TIME } else { HOOK_TIME_IN_SLOT };
        // The run time may be over, and the first call may take long.
        leased_job.lease.renew_for(time);
        // Boxed, because few jobs have hooks.
        let call = || self.call_ending(leased_job, job, JobEnd::from(output));
        let calls = Box::pin(leased_job.retry_until(Instant::now() + time, call));
        let called = leased_job.core.options.call_before_end(calls).await;
        let called = called.unwrap_or_else(|| Err(no_answer()));
        called.map_err(|error| failed(leased_job, &error, DeferralCause::BrokenHook))
    }

    /// Returns whether a hook has recorded that the job is done. If no hook has and at least one fails,
    /// returns the disposition of the message instead.
    pub(super) async fn is_done_elsewhere(
        &self,
        leased_job: &LeasedJob,
        job: &JobInfo,
    ) -> Result<bool, NotRun> {
        let mut unknown = Ok(false);
        for hook in self.hooks_of(job) {
            match hook.is_done_elsewhere(self.hook_context(leased_job, job)).await {
                Ok(true) => return Ok(true),
                Ok(false) => {}
                Err(error) => {
                    unknown = unknown.and(Err(failed(leased_job, &error, DeferralCause::BrokenHook)))
                }
            }
        }
        unknown
    }

    /// Calls all hooks for a message that is dead-lettered although a hook has been failing for long. Errors
    /// are only logged, so that one failing hook does not stop the others.
    ///
    /// # Errors
    /// [`LeaseLost`](ErrorKind::LeaseLost): the job may run elsewhere, and no further hook is called.
    pub(super) async fn giving_up(
        &self,
        leased_job: &LeasedJob,
        job: &JobInfo,
        rejection: &Rejection,
    ) -> Result<(), Error> {
        for hook in self.hooks_of(job) {
            match hook.ending(self.hook_context(leased_job, job), JobEnd::Failed(rejection)).await {
                Err(error) if error.kind() == ErrorKind::LeaseLost => return Err(error),
                Err(error) => {
                    crate::log::error!(queue = %job.queue, error = %chain(&error), "dead-lettered although a hook of the job failed");
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }

    fn hooks_of(&self, job: &JobInfo) -> impl DoubleEndedIterator<Item = &dyn Hook> {
        self.hooks.iter().map(|hook| &**hook).filter(|hook| hook.applies_to(job))
    }

    fn hook_context<'a>(&'a self, leased_job: &'a LeasedJob, job: &'a JobInfo) -> HookContext<'a> {
        HookContext { storage: &self.storage, job, message: leased_job.lease.message_id(), leased_job }
    }
}

/// Returns the disposition of a message whose hook failed: it is put back. If retrying cannot help, `broken`
/// is the cause, which limits how long the message waits.
fn failed(leased_job: &LeasedJob, error: &Error, broken: DeferralCause) -> NotRun {
    let detail = format!("a hook of the job failed: {}", chain(error));
    crate::log::warn!(queue = %leased_job.core.name, job = leased_job.logged_id(), error = %chain(error), "a hook of the job failed; the message stays in its queue");
    Box::new(match error.kind() {
        ErrorKind::LeaseLost => Disposition::Abandon,
        _ if may_succeed_soon(error) => Disposition::Defer { cause: DeferralCause::Hook, detail },
        _ => Disposition::Defer { cause: broken, detail },
    })
}
