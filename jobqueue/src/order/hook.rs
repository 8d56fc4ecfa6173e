//! The worker's hook for FIFO groups.
//!
//! A delivery that is not the first of its group waits here, without occupying a slot, until the job before
//! it has ended. If that job ran on this worker, a notification wakes the delivery at once. Progress on other
//! workers is found by reading the group log at intervals.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::Instant;

use super::parking::{Parking, max_wait, min_put_back_delay, put_back_delay};
use crate::delivery::{
    AdmissionContext, Disposition, Hook, HookAnswer, HookContext, JobEnd, LeasedJob, end_turn,
    is_done_in_order, keep_expected, position_of,
};
use crate::error::Error;
use crate::group_log::{EndState, GRACE, IN_ORDER, InOrder, LogBlob, OverdueWait, Position, superseded};
use crate::job::JobInfo;
use crate::queue_core::remove_blobs;
use crate::storage::StoreErrorKind;

/// The interval at which a waiting delivery checks whether the time of another message has run out.
const RECHECK: Duration = Duration::from_secs(2);
/// The delay of a message that finds its log full, finds another copy in turn, or waits for an overdue
/// message; the minimum delay if too many jobs of its group have a position.
const RETRY_DELAY: Duration = Duration::from_secs(20);
/// The delivery count at which the delay of a second copy stops growing, at a minute. Each delivery before
/// adds an eighth of [`RETRY_DELAY`].
const MAX_COPY_WAITS: u32 = 24;
/// The time that a delivery behind an overdue message waits before it marks that message.
const OVERDUE_GRACE: Duration = Duration::from_secs(2);
/// The minimum time for which deliveries mark an overdue message before they skip it, in addition to the time
/// for which the storage may hide a message.
pub(super) const OVERDUE_TIMEOUT: Duration = Duration::from_secs(120);
/// The addition to this time for each message in the queue: roughly the time to deliver a message.
const OVERDUE_TIMEOUT_PER_MESSAGE: Duration = Duration::from_millis(50);
/// The assumed number of messages in a queue whose storage does not count them: ten minutes for a round of
/// the queue.
const UNKNOWN_LENGTH: u64 = 12_000;

/// Takes part in every delivery whose sender requested the order of its key, and in no other.
#[derive(Debug)]
pub(crate) struct OrderHook {
    parking: Parking,
}

impl OrderHook {
    pub(crate) fn new() -> Self {
        Self { parking: Parking::new() }
    }
}

struct OrderedDelivery<'a> {
    arrived: Instant,
    leased_job: &'a LeasedJob,
    job: &'a JobInfo,
    admission: AdmissionContext<'a>,
    own: InOrder,
    log: Arc<LogBlob>,
}

/// The next step of a delivery that asks for its turn.
enum TurnStep {
    /// Run the handler.
    Run,
    /// End the wait: put the message back, or delete it.
    Settle(Disposition),
    /// Wait behind this number of other jobs. `overdue`: the message of the first of them is overdue.
    Wait { ahead: usize, overdue: bool },
    /// The log has changed: ask again.
    Ask,
}

#[async_trait]
impl Hook for OrderHook {
    fn applies_to(&self, job: &JobInfo) -> bool {
        job.headers.get(IN_ORDER).is_some_and(|value| value == "true")
    }

    async fn admit(
        &self,
        context: HookContext<'_>,
        admission: AdmissionContext<'_>,
    ) -> Result<HookAnswer, Error> {
        let HookContext { leased_job, job, .. } = context;
        // An event without a key has no group; and where the storage keeps the order, each job is delivered
        // in its turn.
        let Some(own) = position_of(leased_job) else { return Ok(HookAnswer::Run) };
        let log = leased_job.core.groups.of(&own.entry)?;
        OrderedDelivery { arrived: Instant::now(), leased_job, job, admission, own, log }
            .wait_for_turn(&self.parking)
            .await
    }

    async fn ending(&self, context: HookContext<'_>, end: JobEnd<'_>) -> Result<(), Error> {
        match end {
            JobEnd::Completed { .. } => end_turn(context.leased_job, EndState::Done).await,
            // The delivery ends the position, also without this hook.
            JobEnd::Discarded => Ok(()),
            JobEnd::Failed(_) => end_turn(context.leased_job, EndState::DeadLettered).await,
        }
    }

    async fn is_done_elsewhere(&self, context: HookContext<'_>) -> Result<bool, Error> {
        is_done_in_order(context.leased_job).await
    }
}

impl OrderedDelivery<'_> {
    /// Waits for the turn. If the turn does not come in time, returns what happens to the message instead.
    async fn wait_for_turn(&self, parking: &Parking) -> Result<HookAnswer, Error> {
        let run_time = self.leased_job.lease.max_run_time();
        let mut give_up = self.arrived + max_wait(run_time, self.admission.until_idle);
        let notifier = self.log.notifier(&self.own.entry);
        let mut parked = None;
        let mut fewest_ahead = usize::MAX;
        loop {
            let mut notified = pin!(notifier.notified());
            // Enabled before the log is read, so that no notification is missed.
            notified.as_mut().enable();
            let (ahead, overdue) = match self.next_step().await? {
                TurnStep::Run => {
                    let has_left_slot = parked.take().is_some();
                    return self.begin(has_left_slot).await;
                }
                TurnStep::Settle(disposition) => return Ok(HookAnswer::Settle(disposition)),
                TurnStep::Ask => continue,
                TurnStep::Wait { ahead, overdue } => (ahead, overdue),
            };
            if parked.is_none() && self.leased_job.has_deliveries_left() {
                parked = parking.park(ahead);
                // A delivery without a parking space keeps its slot until it is put back: so the number of
                // such deliveries is bounded, too.
                if parked.is_some() {
                    self.admission.leave_slot();
                }
            }
            if ahead < fewest_ahead {
                fewest_ahead = ahead;
                if self.admission.until_idle {
                    give_up = Instant::now() + max_wait(run_time, true);
                }
            }
            if parked.is_none() {
                match self.step_without_parking(ahead, overdue).await? {
                    TurnStep::Settle(disposition) => return Ok(HookAnswer::Settle(disposition)),
                    TurnStep::Run | TurnStep::Ask | TurnStep::Wait { .. } => continue,
                }
            }
            if Instant::now() >= give_up {
                return Ok(HookAnswer::release(put_back_delay(ahead, self.own.turn.delivery)));
            }
            tokio::select! {
                biased;
                () = self.must_end() => return self.interrupted().await.map(HookAnswer::Settle),
                () = notified => {}
                () = self.log.watch() => {}
                () = tokio::time::sleep(RECHECK) => {}
                () = tokio::time::sleep_until(give_up) => {}
            }
        }
    }

    /// Returns the next step of a delivery without a parking space: it comes back less often while its group
    /// stands still.
    async fn step_without_parking(&self, ahead: usize, overdue: bool) -> Result<TurnStep, Error> {
        if overdue {
            // It cannot wait out the grace time before it marks the message.
            return self.mark_overdue().await;
        }
        if self.log.read_if_due().await {
            return Ok(TurnStep::Ask);
        }
        let core = &self.leased_job.core;
        let progress = core.groups.progress(&self.log, &self.own.entry);
        let delay = put_back_delay(ahead, self.own.turn.delivery).max(min_put_back_delay(progress, ahead));
        Ok(TurnStep::Settle(Disposition::Release(delay)))
    }

    /// Lets the handler run, unless the worker stopped, or fetching from the queue was paused while the
    /// delivery waited without its slot.
    async fn begin(&self, has_left_slot: bool) -> Result<HookAnswer, Error> {
        keep_expected(self.leased_job);
        if has_left_slot {
            if !self.take_slot().await {
                return self.interrupted().await.map(HookAnswer::Settle);
            }
            // Refreshed here; the delivery checks the settings when its handler begins.
            let _ = self.leased_job.core.fresh_settings().await;
            if self.admission.slot.is_fetching_paused() {
                return Ok(HookAnswer::release(Duration::ZERO));
            }
        }
        Ok(HookAnswer::Run)
    }

    /// Returns the next step, from the cached log if that is sufficient; otherwise reads the log first.
    async fn next_step(&self) -> Result<TurnStep, Error> {
        let InOrder { entry, .. } = self.own;
        let core = &self.leased_job.core;
        let now = core.groups.clock.certain_now().await?;
        if let Some(abandoned) = self.log.latest().abandoned(&entry, now) {
            let remove = |payload| remove_blobs(core, &core.name, vec![payload]);
            core.groups.finish_abandoned(&self.log, abandoned, core.store(), remove).await?;
        }
        Ok(match core.groups.position(&self.log, self.own, now).await? {
            Position::First => TurnStep::Run,
            Position::Ended(EndState::Cancelled) => TurnStep::Settle(Disposition::DiscardCancelled),
            Position::Ended(_) => TurnStep::Settle(Disposition::Discard),
            Position::Superseded => return Err(superseded()),
            Position::Crowded { ahead } => match self.step_without_parking(ahead, false).await? {
                TurnStep::Settle(Disposition::Release(delay)) => {
                    // The log does not say how many jobs without a position are ahead.
                    TurnStep::Settle(Disposition::Release(delay.max(RETRY_DELAY)))
                }
                next => next,
            },
            Position::Full => TurnStep::Settle(Disposition::Release(RETRY_DELAY)),
            // The other copy may run for hours, so the delay grows with each delivery.
            Position::OtherCopy { overdue: false } => {
                let deliveries = self.own.turn.delivery.min(MAX_COPY_WAITS);
                TurnStep::Settle(Disposition::Release(RETRY_DELAY / 8 * deliveries))
            }
            Position::Behind { ahead, overdue: false } => TurnStep::Wait { ahead, overdue: false },
            // The missing message may arrive with the same request.
            Position::Behind { ahead, overdue: true } if self.arrived.elapsed() < OVERDUE_GRACE => {
                TurnStep::Wait { ahead, overdue: true }
            }
            Position::Behind { overdue: true, .. } | Position::OtherCopy { overdue: true } => {
                self.mark_overdue().await?
            }
        })
    }

    /// Marks the overdue message before this one: skips it if it has stayed away for long enough, otherwise
    /// puts this message back. If the overdue message could no longer be hidden by then, the next delivery of
    /// this message proves that the queue has gone round once.
    async fn mark_overdue(&self) -> Result<TurnStep, Error> {
        let InOrder { entry, turn } = self.own;
        let core = &self.leased_job.core;
        let put_back =
            || TurnStep::Settle(Disposition::Release(core.runtime().jitter(RETRY_DELAY, 0.5..=1.0)));
        // A storage that cannot count messages immediately may take minutes.
        let counted = tokio::select! {
            biased;
            () = self.must_end() => return self.interrupted().await.map(TurnStep::Settle),
            counted = self.messages_to_go_round() => counted?,
        };
        let Some(messages) = counted else { return Ok(put_back()) };
        let queue = OVERDUE_TIMEOUT_PER_MESSAGE.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX));
        // The overdue message may be hidden for as long as this one.
        let hidden = OVERDUE_TIMEOUT + self.leased_job.times.hidden;
        let wait = OverdueWait { hidden, queue };
        let now = core.groups.clock.certain_now().await?;
        if self.log.read_and_change(move |log| log.mark_overdue(&entry, turn, wait, now)).await? {
            crate::log::warn!(queue = %core.name, "a FIFO message did not arrive; the jobs behind it go on without it");
            return Ok(TurnStep::Ask);
        }
        Ok(match self.log.latest().position(&entry, turn, now) {
            Some(Position::Behind { overdue: true, .. } | Position::OtherCopy { overdue: true }) | None => {
                put_back()
            }
            Some(_) => TurnStep::Ask,
        })
    }

    /// Returns the number of messages in the queue. Returns `None` while the overdue message may wait in a
    /// former shard, behind messages that are older than this one: that this message comes again shows only
    /// that its own shard has gone round.
    async fn messages_to_go_round(&self) -> Result<Option<u64>, Error> {
        let core = &self.leased_job.core;
        let properties = match core.store().queue_properties(&core.name).await {
            Err(error) if error.kind() == StoreErrorKind::Unsupported => return Ok(Some(UNKNOWN_LENGTH)),
            properties => properties?,
        };
        // A peek of limited reach shows leased messages as well, this one among them.
        if properties.in_former_shards && core.store().powers().peek_reach.is_none() {
            // The clocks of accounts differ, and for a while senders put messages into former shards.
            let later = self.leased_job.times.inserted + GRACE;
            let oldest = core.store().peek(&core.name, 1).await?;
            if oldest.first().is_some_and(|oldest| oldest.inserted < later) {
                return Ok(None);
            }
        }
        Ok(Some(properties.approximate_count))
    }

    /// Waits for a slot. Returns false if the delivery must end first. A worker without a free slot for long
    /// leaves the message to other workers.
    async fn take_slot(&self) -> bool {
        let max_wait = max_wait(self.leased_job.lease.max_run_time(), self.admission.until_idle);
        tokio::select! {
            biased;
            () = self.must_end() => false,
            () = self.admission.slot.take() => true,
            () = tokio::time::sleep(max_wait) => false,
        }
    }

    /// Waits until the delivery must not wait any longer: its lease is lost or has lasted for too long, its
    /// worker is stopping, or an operator has cancelled the job.
    async fn must_end(&self) {
        tokio::select! {
            biased;
            () = self.leased_job.lease.stop_token().cancelled() => {}
            () = self.admission.stop.cancelled() => {}
            () = self.admission.until_cancelled(self.leased_job, self.job) => {}
        }
    }

    /// Returns the disposition of a waiting delivery that lost its lease, waited for too long, whose job was
    /// cancelled, or whose worker is stopping or has no slot.
    async fn interrupted(&self) -> Result<Disposition, Error> {
        // One request may cancel all deliveries that wait here, and each dead letter copies its payload.
        let cancelled = self.admission.cancelled(self.leased_job, self.job);
        let may_end = cancelled.is_some() && self.take_place_to_settle().await;
        if self.leased_job.lease.check_not_ended().is_err() {
            return Err(superseded());
        }
        let cancelled = cancelled.filter(|_| may_end);
        Ok(cancelled.map_or(Disposition::Release(Duration::ZERO), Disposition::DeadLetter))
    }

    /// Waits for a place to settle if the delivery has left its slot. Returns false if the delivery must end
    /// first; the next one ends the job with its slot.
    async fn take_place_to_settle(&self) -> bool {
        let max_wait = max_wait(self.leased_job.lease.max_run_time(), self.admission.until_idle);
        tokio::select! {
            biased;
            () = self.admission.slot.take_place_to_settle() => true,
            () = self.leased_job.lease.stop_token().cancelled() => false,
            () = self.admission.stop.cancelled() => false,
            () = tokio::time::sleep(max_wait) => false,
        }
    }
}
