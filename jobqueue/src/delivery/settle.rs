//! Settles a delivery: performs its [`Disposition`]. A hook that fails may still change it.

use std::sync::Arc;
use std::time::Duration;

use super::claimed_letter::is_letter_claimed;
use super::dead_letter::{DEAD_LETTER_RETRY, dead_letter, is_lease_error, record_end, record_end_or_fail};
use super::dead_letter_hook::DeadLettered;
use super::deferral::{DeferOutcome, DeferralCause, defer};
use super::disposition::{Disposition, Rejection};
use super::executor::{DeliveryReport, Executor};
use super::leased_job::LeasedJob;
use super::order_position::{end_position_of_done, needs_log_update};
use super::slot::DeliverySlot;
use crate::error::Error;
use crate::job::JobInfo;
use crate::job::outcome::{Outcome, Reason, chain};
use crate::lease::{LeaseError, Loss};
use crate::trace::OpenSpan;

impl Executor {
    /// Settles the message, in a tracer's span if there is a tracer, and completes the report.
    pub(super) async fn settle(
        &self,
        leased_job: &Arc<LeasedJob>,
        disposition: Disposition,
        slot: &dyn DeliverySlot,
        mut report: DeliveryReport,
    ) -> DeliveryReport {
        // A request for many messages has its own span.
        if matches!(disposition, Disposition::Complete)
            && self.deletes_in_batch(leased_job)
            && let Some(settled) = self.complete_with_others(leased_job, &report).await
        {
            report.record_settlement(leased_job, settled);
            return report;
        }
        report.error = report.error.or(disposition.error());
        let mut span = match disposition {
            Disposition::Abandon => OpenSpan::none(),
            _ => leased_job.settle_span(report.process),
        };
        let is_recording = leased_job.is_recording() && disposition.may_run_again();
        if is_recording {
            // Keeps the slot if no place to settle is free: during an outage, 15 minutes of deliveries would
            // pile up.
            let _ = slot.handler_is_done();
        }
        // Boxed, because most deliveries have returned above.
        let mut settling = Box::pin(async {
            if is_recording {
                leased_job.wait_for_effects().await;
            }
            if let Some(wait) = disposition.delay() {
                leave_slot_for_log(wait, leased_job, slot);
            }
            let settled = self.perform(leased_job, disposition, slot, &mut report).await;
            report.record_settlement(leased_job, settled);
        });
        span.run(settling.as_mut()).await;
        drop(settling);
        span.end(Some(report.outcome.as_str()), report.settle_error);
        report
    }

    /// Applies the disposition to the message.
    async fn perform(
        &self,
        leased_job: &LeasedJob,
        disposition: Disposition,
        slot: &dyn DeliverySlot,
        report: &mut DeliveryReport,
    ) -> Result<Outcome, Error> {
        let job = report.job.clone();
        match disposition {
            Disposition::Complete => self.complete(leased_job).await,
            Disposition::Discard => Box::pin(self.discard_done(leased_job, job, slot)).await,
            Disposition::DiscardCancelled => {
                report.earlier_end = Some(Reason::CANCELLED);
                Box::pin(self.discard_cancelled(leased_job, job, slot)).await
            }
            // The rare dispositions are boxed, so that they do not enlarge the future of every delivery.
            Disposition::Retry { wait, error } => {
                Box::pin(leased_job.retry(wait, &error)).await.map(Outcome::Retried)
            }
            Disposition::DeadLetter(rejection) => {
                Box::pin(self.reject(leased_job, rejection, slot, report)).await
            }
            Disposition::Release(wait) | Disposition::OverLimit(wait) => {
                Box::pin(release(leased_job, wait)).await
            }
            Disposition::Snooze { wait, error, has_cause } => {
                let cause = has_cause.then_some(&*error);
                Box::pin(leased_job.snooze(wait, cause)).await.map(Outcome::Released)
            }
            Disposition::Defer { cause, detail } => {
                Box::pin(self.defer_or_reject(leased_job, cause, &detail, slot, report)).await
            }
            Disposition::Abandon => {
                let is_over = leased_job.lease.has_ended_with_message();
                report.lease_expired = !is_over && leased_job.lease.loss() == Some(Loss::Expired);
                leased_job.lease.abandon();
                Ok(if is_over { Outcome::Expired } else { Outcome::LeaseLost })
            }
        }
    }

    /// Puts the message back until its condition is met, or dead-letters it if it has waited for long enough.
    #[allow(clippy::too_many_arguments, reason = "the fields of a deferral, and what a rejection needs")]
    async fn defer_or_reject(
        &self,
        leased_job: &LeasedJob,
        cause: DeferralCause,
        detail: &str,
        slot: &dyn DeliverySlot,
        report: &mut DeliveryReport,
    ) -> Result<Outcome, Error> {
        match defer(leased_job, cause, detail, |wait| leave_slot_for_log(wait, leased_job, slot)).await? {
            DeferOutcome::PutBack(wait) => Ok(Outcome::Released(wait)),
            DeferOutcome::WaitIsOver(rejection) => self.reject(leased_job, rejection, slot, report).await,
        }
    }

    /// Dead-letters a message: records the attempt if there was one, calls the hooks, and moves the message.
    /// If the job is already done, deletes the message instead, whatever its content. Messages that did not
    /// run are dead-lettered at a limited rate.
    async fn reject(
        &self,
        leased_job: &LeasedJob,
        mut rejection: Rejection,
        slot: &dyn DeliverySlot,
        report: &mut DeliveryReport,
    ) -> Result<Outcome, Error> {
        if !rejection.attempted {
            // Before any request: a flood of such messages must not take slots from others.
            if let Err(wait) = slot.reject() {
                leave_slot_for_log(wait, leased_job, slot);
                return release(leased_job, wait).await;
            }
            let _is_free = slot.handler_is_done();
        }
        match is_letter_claimed(leased_job, &rejection).await {
            Ok(true) => {
                // The job may have run again since then, so this is not the time of its end.
                report.earlier_end = Some(rejection.reason);
                // The blobs stay, because the letter may refer to them.
                let deleted = deletion_outcome(leased_job.lease.delete().await);
                return deleted.map(|()| Outcome::Duplicate);
            }
            Ok(false) => {}
            Err(error) => return retry_dead_letter_later(leased_job, error).await,
        }
        if leased_job.is_recording() {
            // A redrive would repeat the effect, whose result is not recorded yet. The next delivery stores
            // the letter, after this lease, until whose end the result may still be recorded.
            record_end(leased_job, &mut rejection).await?;
            return release(leased_job, Duration::ZERO).await;
        }
        let job = report.job.clone();
        let Some(hooked) = job.as_deref().filter(|job| self.state.has_hooks(job)) else {
            return self.dead_letter(leased_job, job, rejection).await;
        };
        // The hooks let other jobs start that must wait for this end. Without the record, this job might run
        // again at the same time.
        if let Err(error) = record_end_or_fail(leased_job, &mut rejection).await {
            return retry_dead_letter_later(leased_job, error).await;
        }
        let called = match self.state.is_done_elsewhere(leased_job, hooked).await {
            Ok(true) => return self.discard_done(leased_job, job, slot).await,
            Ok(false) => self.state.dead_lettering(leased_job, hooked, &rejection).await,
            Err(failed) => Err(failed),
        };
        match called {
            Ok(()) => self.dead_letter(leased_job, job, rejection).await,
            Err(failed) => self.after_failed_hook(leased_job, job, *failed, Some(rejection), slot).await,
        }
    }

    /// Deletes the message of a finished job, after calling the hooks.
    async fn discard_done(
        &self,
        leased_job: &LeasedJob,
        job: Option<Arc<JobInfo>>,
        slot: &dyn DeliverySlot,
    ) -> Result<Outcome, Error> {
        if let Some(done) = &job
            && let Err(failed) = self.state.discarding(leased_job, done).await
        {
            return self.after_failed_hook(leased_job, job, *failed, None, slot).await;
        }
        end_position_of_done(leased_job).await?;
        discard(leased_job).await
    }

    /// Deletes the message of a cancelled job, after calling the hooks.
    async fn discard_cancelled(
        &self,
        leased_job: &LeasedJob,
        job: Option<Arc<JobInfo>>,
        slot: &dyn DeliverySlot,
    ) -> Result<Outcome, Error> {
        let rejection = Rejection::new(Reason::CANCELLED, "cancelled by its sender");
        if let Some(cancelled) = &job
            && let Err(failed) = self.state.dead_lettering(leased_job, cancelled, &rejection).await
        {
            return self.after_failed_hook(leased_job, job, *failed, Some(rejection), slot).await;
        }
        discard(leased_job).await
    }

    /// Puts a message back whose hook has failed. If hooks have failed for long enough, dead-letters the
    /// message: with `rejection`, or because of the hook if the job is done. A redrive runs such a job again,
    /// unless a group log, a ledger or a durable completion says that it is done.
    #[allow(clippy::too_many_arguments, reason = "the failure of a hook, and what a dead letter needs")]
    async fn after_failed_hook(
        &self,
        leased_job: &LeasedJob,
        job: Option<Arc<JobInfo>>,
        failed: Disposition,
        rejection: Option<Rejection>,
        slot: &dyn DeliverySlot,
    ) -> Result<Outcome, Error> {
        let Disposition::Defer { cause, detail } = failed else {
            leased_job.lease.abandon();
            return Ok(Outcome::LeaseLost);
        };
        match defer(leased_job, cause, &detail, |wait| leave_slot_for_log(wait, leased_job, slot)).await? {
            DeferOutcome::PutBack(wait) => Ok(Outcome::Released(wait)),
            DeferOutcome::WaitIsOver(hook_rejection) => match rejection {
                Some(rejection) => self.give_up(leased_job, job, rejection).await,
                // The job itself has not failed, so no hook may record a failure.
                None => {
                    end_position_of_done(leased_job).await?;
                    self.dead_letter(leased_job, job, hook_rejection).await
                }
            },
        }
    }

    /// Dead-letters a message although a hook of its job has been failing for long.
    async fn give_up(
        &self,
        leased_job: &LeasedJob,
        job: Option<Arc<JobInfo>>,
        mut rejection: Rejection,
    ) -> Result<Outcome, Error> {
        if let Some(job) = &job {
            if let Err(error) = record_end_or_fail(leased_job, &mut rejection).await {
                return retry_dead_letter_later(leased_job, error).await;
            }
            self.state.giving_up(leased_job, job, &rejection).await?;
        }
        self.dead_letter(leased_job, job, rejection).await
    }

    /// Moves the message to the dead-letter queue, and calls the application's hooks. If the copy cannot be
    /// stored, the message stays in its queue, and a later delivery tries again.
    async fn dead_letter(
        &self,
        leased_job: &LeasedJob,
        job: Option<Arc<JobInfo>>,
        mut rejection: Rejection,
    ) -> Result<Outcome, Error> {
        record_end(leased_job, &mut rejection).await?;
        if let Err(error) = dead_letter(leased_job, &rejection).await {
            return retry_dead_letter_later(leased_job, error).await;
        }
        let Rejection { reason, detail, .. } = rejection;
        let dead = || DeadLettered {
            job,
            queue: leased_job.core.name.clone(),
            reason: reason.clone(),
            error: detail,
        };
        self.state.options.dead_letter_hooks.call(dead).await;
        Ok(Outcome::DeadLettered(reason))
    }
}

/// Frees the slot if putting the message back for `wait` needs a change of its group log: the delivery may
/// have to wait until the log can be changed.
fn leave_slot_for_log(wait: Duration, leased_job: &LeasedJob, slot: &dyn DeliverySlot) {
    if needs_log_update(leased_job, wait) {
        slot.leave();
    }
}

/// Deletes the message of a job that is done, or that another message continues.
async fn discard(leased_job: &LeasedJob) -> Result<Outcome, Error> {
    deletion_outcome(leased_job.complete().await).map(|()| Outcome::Duplicate)
}

/// Returns the result of deleting a message that did not run. A message that may still be there counts as
/// deleted: its next delivery deletes it.
fn deletion_outcome(deleted: Result<(), LeaseError>) -> Result<(), Error> {
    match deleted {
        Ok(()) | Err(LeaseError::Uncertain(_) | LeaseError::Refused(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn release(leased_job: &LeasedJob, wait: Duration) -> Result<Outcome, Error> {
    leased_job.release_uncounted(wait).await.map(Outcome::Released)
}

/// Leaves a message that could not be dead-lettered in its queue, to be retried later.
async fn retry_dead_letter_later(leased_job: &LeasedJob, error: Error) -> Result<Outcome, Error> {
    if is_lease_error(&error) {
        return Err(error);
    }
    crate::log::error!(
        queue = %leased_job.core.name,
        error = %chain(&error),
        "dead letter not stored; the message stays in its queue"
    );
    release(leased_job, DEAD_LETTER_RETRY).await
}
