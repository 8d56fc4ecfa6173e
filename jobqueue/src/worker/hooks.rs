//! Calls the hooks, and decides about a delivery whose hook has failed.

use super::context::HandlerOutput;
use super::ending::Ending;
use super::hook::{Decision, Hook, HookContext, Waiting};
use super::shared::Shared;
use crate::error::{Error, ErrorKind};
use crate::job::JobInfo;
use crate::job::outcome::chain;
use crate::queue::{Cause, LeasedJob, Rejection};

/// Returns whether a hook has to do with the job.
pub(super) fn concern(shared: &Shared, job: &JobInfo) -> bool {
    concerned(shared, job).next().is_some()
}

/// Asks the hooks whether the handler may run.
pub(super) async fn admit(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &JobInfo,
    waiting: Waiting<'_>,
) -> Result<Decision, Ending> {
    for hook in concerned(shared, job) {
        let decision = hook.admit(context(shared, leased_job, job), waiting).await;
        match decision.map_err(|error| failed(leased_job, &error))? {
            Decision::Run => {}
            other => return Ok(other),
        }
    }
    Ok(Decision::Run)
}

/// Tells the hooks that the job is done. If one of them fails, returns another end of the delivery.
pub(super) async fn completing(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &JobInfo,
    output: &HandlerOutput,
) -> Result<(), Ending> {
    for hook in concerned(shared, job) {
        let context = context(shared, leased_job, job);
        let told = hook.completing(context, output.result.as_deref(), output.handed_over).await;
        told.map_err(|error| failed(leased_job, &error))?;
    }
    Ok(())
}

/// Tells the hooks that the message is about to be moved to the dead-letter queue.
pub(super) async fn dead_lettering(
    shared: &Shared,
    leased_job: &LeasedJob,
    job: &JobInfo,
    rejection: &Rejection,
) -> Result<(), Ending> {
    for hook in concerned(shared, job) {
        let context = context(shared, leased_job, job);
        let told = hook.dead_lettering(context, rejection.reason.as_str(), &rejection.detail).await;
        told.map_err(|error| failed(leased_job, &error))?;
    }
    Ok(())
}

/// Returns the end of a delivery whose hook failed: the message is delivered again, but not forever if that cannot
/// help.
fn failed(leased_job: &LeasedJob, error: &Error) -> Ending {
    let detail = format!("a hook of the job failed: {}", chain(error));
    tracing::warn!(queue = %leased_job.core.name, error = %chain(error), "a hook of the job failed; the message stays in its queue");
    match error.kind() {
        ErrorKind::LeaseLost => Ending::LeaseLost,
        // A new attempt finds out whether the change was made.
        _ if error.is_retryable() || error.is_outcome_unknown() || error.is_lease_uncertain() => {
            Ending::Deferred(Cause::Hook, detail)
        }
        _ => Ending::Deferred(Cause::BrokenHook, detail),
    }
}

fn concerned<'s>(shared: &'s Shared, job: &JobInfo) -> impl Iterator<Item = &'s dyn Hook> {
    shared.hooks.iter().map(|hook| &**hook).filter(|hook| hook.applies_to(job))
}

fn context<'a>(shared: &'a Shared, leased_job: &'a LeasedJob, job: &'a JobInfo) -> HookContext<'a> {
    HookContext { storage: &shared.storage, job, message: leased_job.lease.message_id(), leased_job }
}

#[cfg(all(test, feature = "testing"))]
mod tests;
