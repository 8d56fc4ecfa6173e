//! Settles a delivery: performs its [`Disposition`]. A hook that fails may still change it.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::claimed_letter::is_letter_claimed;
use super::dead_letter::{DEAD_LETTER_RETRY, dead_letter, is_lease_error, record_end, record_end_or_fail};
use super::dead_letter_hook::DeadLettered;
use super::deferral::{DeferOutcome, DeferralCause, defer};
use super::disposition::{Disposition, Rejection};
use super::executor::{DeliveryReport, Executor};
use super::hook::JobEnd;
use super::leased_job::LeasedJob;
use super::message_changes::no_answer;
use super::order_position::{MAX_UNLOGGED_DELAY, end_position_of_done, needs_log_update, position_of};
use super::slot::DeliverySlot;
use crate::error::Error;
use crate::event::LossCause;
use crate::job::outcome::{Outcome, Reason, chain};
use crate::lease::{LeaseError, Loss};
use crate::trace::OpenSpan;

/// The time after which a delivery that settles its message gives its slot to another, if a place to settle
/// is free.
const SETTLED_IN_SLOT: Duration = Duration::from_secs(1);
/// The time limit for reading a claim while the delivery keeps its slot, because no place to settle is free.
const MAX_CLAIM_READ_IN_SLOT: Duration = Duration::from_secs(2);

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
            let mut settlement = Settlement { executor: self, leased_job, slot, report: &mut report };
            if let Some(wait) = disposition.delay_after_run() {
                settlement.leave_slot_for_log(wait);
            }
            let settled = settlement.perform(disposition).await;
            report.record_settlement(leased_job, settled);
        });
        {
            let mut settled = pin!(span.run(settling.as_mut()));
            if timeout(SETTLED_IN_SLOT, settled.as_mut()).await.is_err() {
                // Otherwise jobs of a shard that does not answer would hold the slots of the others.
                slot.give_away();
                settled.await;
            }
        }
        drop(settling);
        span.end(Some(report.outcome.as_str()), report.settle_error);
        report
    }
}

/// A delivery whose message is being settled.
struct Settlement<'a> {
    executor: &'a Executor,
    leased_job: &'a LeasedJob,
    slot: &'a dyn DeliverySlot,
    report: &'a mut DeliveryReport,
}

impl Settlement<'_> {
    async fn perform(&mut self, disposition: Disposition) -> Result<Outcome, Error> {
        let leased_job = self.leased_job;
        match disposition {
            Disposition::Complete => self.executor.complete(leased_job).await,
            // The rare dispositions are boxed, so that they do not enlarge the future of every delivery.
            Disposition::Discard => Box::pin(self.discard_done()).await,
            Disposition::DiscardCancelled => {
                self.report.earlier_end = Some(Reason::CANCELLED);
                Box::pin(self.discard_cancelled()).await
            }
            Disposition::Retry { wait, error } => {
                Box::pin(leased_job.retry(wait, &error)).await.map(Outcome::Retried)
            }
            Disposition::DeadLetter(rejection) => Box::pin(self.reject(rejection)).await,
            Disposition::Release(wait) | Disposition::OverLimit(wait) => Box::pin(self.release(wait)).await,
            Disposition::Snooze { wait, error, has_cause } => {
                let cause = has_cause.then_some(&*error);
                Box::pin(leased_job.snooze(wait, cause)).await.map(Outcome::Released)
            }
            Disposition::Defer { cause, detail } => Box::pin(self.defer_or_reject(cause, &detail)).await,
            Disposition::Abandon => {
                let is_over = leased_job.lease.has_ended_with_message();
                self.report.lost = match leased_job.lease.loss() {
                    Some(Loss::Taken) => Some(LossCause::Taken),
                    Some(Loss::Expired) if !is_over => Some(LossCause::Expired),
                    _ => None,
                };
                leased_job.lease.abandon();
                Ok(if is_over { Outcome::Expired } else { Outcome::LeaseLost })
            }
        }
    }

    /// Puts the message back until its condition is met, or dead-letters it if it has waited for long enough.
    async fn defer_or_reject(&mut self, cause: DeferralCause, detail: &str) -> Result<Outcome, Error> {
        match defer(self.leased_job, cause, detail, |wait| self.leave_slot_for_log(wait)).await? {
            DeferOutcome::PutBack(wait) => Ok(Outcome::Released(wait)),
            DeferOutcome::WaitIsOver(rejection) => self.reject(rejection).await,
        }
    }

    /// Dead-letters a message: records the attempt if there was one, calls the hooks, and moves the message.
    /// If the job is already done, deletes the message instead, whatever its content. Messages that cannot
    /// run are dead-lettered at a limited rate.
    async fn reject(&mut self, mut rejection: Rejection) -> Result<Outcome, Error> {
        let leased_job = self.leased_job;
        // Before any request: a flood of such messages must not take slots from others.
        if rejection.is_rate_limited() {
            let may_take_long = position_of(leased_job).is_none() || self.slot.handler_is_done();
            let longest = if may_take_long { Duration::MAX } else { MAX_UNLOGGED_DELAY };
            if let Err(wait) = self.slot.reject(longest) {
                return self.release(wait).await;
            }
        }
        match self.read_claim(&rejection).await {
            Ok(true) => {
                // The job may have run again since then, so this is not the time of its end.
                self.report.earlier_end = Some(rejection.reason);
                // The blobs stay, because the letter may refer to them.
                let deleted = deletion_outcome(leased_job.lease.delete().await);
                return deleted.map(|()| Outcome::Duplicate);
            }
            Ok(false) => {}
            Err(error) => return retry_dead_letter_later(leased_job, error).await,
        }
        if leased_job.is_recording() {
            // A redrive would repeat the effect, whose result is not recorded yet. The next delivery stores
            // the letter, in no case before the end of this lease: until then the result may be recorded.
            record_end(leased_job, &mut rejection).await?;
            return leased_job.release_uncounted(Duration::ZERO).await.map(Outcome::Released);
        }
        let state = &self.executor.state;
        let Some(hooked) = self.report.job.as_deref().filter(|job| state.has_hooks(job)) else {
            return self.dead_letter(rejection).await;
        };
        // The hooks let other jobs start that must wait for this end. Without the record, this job might run
        // again at the same time.
        if let Err(error) = record_end_or_fail(leased_job, &mut rejection).await {
            return retry_dead_letter_later(leased_job, error).await;
        }
        let called = match state.is_done_elsewhere(leased_job, hooked).await {
            Ok(true) => return self.discard_done().await,
            Ok(false) => state.dead_lettering(leased_job, hooked, &rejection).await,
            Err(failed) => Err(failed),
        };
        match called {
            Ok(()) => self.dead_letter(rejection).await,
            Err(failed) => self.after_failed_hook(*failed, Some(rejection)).await,
        }
    }

    /// Returns whether the message already has a dead letter that was redriven or purged. Holds up the slot
    /// for a short time only, if no place to settle is free.
    async fn read_claim(&self, rejection: &Rejection) -> Result<bool, Error> {
        // A failed attempt has no claim to read.
        let may_take_long = rejection.attempted || self.slot.handler_is_done();
        let read_claim = is_letter_claimed(self.leased_job, rejection);
        if may_take_long {
            return read_claim.await;
        }
        timeout(MAX_CLAIM_READ_IN_SLOT, read_claim).await.unwrap_or_else(|_| Err(no_answer()))
    }

    /// Deletes the message of a finished job, after calling the hooks.
    async fn discard_done(&self) -> Result<Outcome, Error> {
        if let Some(done) = &self.report.job
            && let Err(failed) = self.executor.state.ending(self.leased_job, done, JobEnd::Discarded).await
        {
            return self.after_failed_hook(*failed, None).await;
        }
        end_position_of_done(self.leased_job).await?;
        discard(self.leased_job).await
    }

    /// Deletes the message of a cancelled job, after calling the hooks.
    async fn discard_cancelled(&self) -> Result<Outcome, Error> {
        let rejection = Rejection::new(Reason::CANCELLED, "cancelled by its sender");
        if let Some(cancelled) = &self.report.job
            && let Err(failed) =
                self.executor.state.dead_lettering(self.leased_job, cancelled, &rejection).await
        {
            return self.after_failed_hook(*failed, Some(rejection)).await;
        }
        discard(self.leased_job).await
    }

    /// Puts a message back whose hook has failed. If hooks have failed for long enough, dead-letters the
    /// message: with `rejection`, or because of the hook if the job is done. A redrive runs such a job again,
    /// unless a group log, a ledger or a durable completion says that it is done.
    async fn after_failed_hook(
        &self,
        failed: Disposition,
        rejection: Option<Rejection>,
    ) -> Result<Outcome, Error> {
        let leased_job = self.leased_job;
        let Disposition::Defer { cause, detail } = failed else {
            leased_job.lease.abandon();
            return Ok(Outcome::LeaseLost);
        };
        match defer(leased_job, cause, &detail, |wait| self.leave_slot_for_log(wait)).await? {
            DeferOutcome::PutBack(wait) => Ok(Outcome::Released(wait)),
            DeferOutcome::WaitIsOver(hook_rejection) => match rejection {
                Some(rejection) => self.give_up(rejection).await,
                // The job itself has not failed, so no hook may record a failure.
                None => {
                    end_position_of_done(leased_job).await?;
                    self.dead_letter(hook_rejection).await
                }
            },
        }
    }

    /// Dead-letters a message although a hook of its job has been failing for long.
    async fn give_up(&self, mut rejection: Rejection) -> Result<Outcome, Error> {
        let leased_job = self.leased_job;
        if let Some(job) = &self.report.job {
            if let Err(error) = record_end_or_fail(leased_job, &mut rejection).await {
                return retry_dead_letter_later(leased_job, error).await;
            }
            self.executor.state.giving_up(leased_job, job, &rejection).await?;
        }
        self.dead_letter(rejection).await
    }

    /// Moves the message to the dead-letter queue, and calls the application's hooks. If the copy cannot be
    /// stored, the message stays in its queue, and a later delivery tries again.
    async fn dead_letter(&self, mut rejection: Rejection) -> Result<Outcome, Error> {
        let leased_job = self.leased_job;
        record_end(leased_job, &mut rejection).await?;
        if let Err(error) = dead_letter(leased_job, &rejection).await {
            return retry_dead_letter_later(leased_job, error).await;
        }
        let Rejection { reason, detail, .. } = rejection;
        let dead = || DeadLettered {
            job: self.report.job.clone(),
            queue: leased_job.core.name.clone(),
            reason: reason.clone(),
            error: detail,
        };
        self.executor.state.options.dead_letter_hooks.call(dead).await;
        Ok(Outcome::DeadLettered(reason))
    }

    /// Puts a message back that does not run now. Any number of such messages may come, so only those with a
    /// place to settle wait until their logs can be changed. The others come back before that is necessary.
    async fn release(&self, wait: Duration) -> Result<Outcome, Error> {
        let is_unlogged = needs_log_update(self.leased_job, wait) && !self.slot.handler_is_done();
        // Not all at once, if many are put back at once.
        let unlogged_wait = || self.leased_job.core.runtime().jitter(MAX_UNLOGGED_DELAY, 0.8..=1.0);
        let wait = if is_unlogged { unlogged_wait() } else { wait };
        self.leased_job.release_waiting(wait, None).await.map(Outcome::Released)
    }

    /// Frees the slot if putting the message back for `wait` needs a change of its group log: the delivery
    /// may have to wait until the log can be changed.
    fn leave_slot_for_log(&self, wait: Duration) {
        if needs_log_update(self.leased_job, wait) {
            self.slot.leave();
        }
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

/// Leaves a message that could not be dead-lettered in its queue, to be retried later.
async fn retry_dead_letter_later(leased_job: &LeasedJob, error: Error) -> Result<Outcome, Error> {
    if is_lease_error(&error) {
        return Err(error);
    }
    crate::log::error!(
        queue = %leased_job.core.name,
        job = leased_job.logged_id(),
        error = %chain(&error),
        "dead letter not stored; the message stays in its queue"
    );
    leased_job.release_waiting(DEAD_LETTER_RETRY, None).await.map(Outcome::Released)
}
