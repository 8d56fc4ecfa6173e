//! The worker's hook for FIFO groups.
//!
//! A delivery that is not the first of its group waits here, without occupying a slot, until the job before it has
//! ended. If that job ran on this worker, a notification wakes the delivery at once. Progress on other workers is
//! found by reading the group log at intervals.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::parking::{Parking, least_put_back_delay, longest_wait, put_back_delay};
use crate::delivery::{
    Disposition, Hook, HookContext, LeasedJob, Waiting, end_turn, is_done_in_order, keep_expected,
    position_of,
};
use crate::error::Error;
use crate::group_log::{EndState, IN_ORDER, InOrder, LogBlob, Millis, Patience, Position, superseded};
use crate::job::JobInfo;
use crate::queue_core::remove_blobs;
use crate::storage::StoreErrorKind;

/// The interval at which a waiting delivery asks whether the time of another has run out.
const RECHECK: Duration = Duration::from_secs(2);
/// The delay of a message that finds its log full, finds another copy in turn, or waits for an overdue message; the least one if too many
/// jobs of its group have a position.
const RETRY_DELAY: Duration = Duration::from_secs(20);
/// The delivery of a second copy from which its delay, which grows by an eighth of [`RETRY_DELAY`] with each, stays the same: a minute.
const MAX_COPY_WAITS: u32 = 24;
/// The time that a delivery behind an overdue message waits before it marks it.
const OVERDUE_GRACE: Duration = Duration::from_secs(2);
/// The minimum time for which deliveries mark an overdue message before they skip it, in addition to that for which the storage hides a message.
pub(super) const OVERDUE_TIMEOUT: Duration = Duration::from_secs(120);
/// The addition to this time for each message in the queue: roughly the time to deliver one.
const OVERDUE_TIMEOUT_PER_MESSAGE: Duration = Duration::from_millis(50);
/// The number of messages that a queue is taken to have where the storage does not count them: ten minutes for a round of it.
const UNKNOWN_LENGTH: u64 = 12_000;

/// Takes part in every delivery whose sender asked for the order of its key, and in no other.
#[derive(Debug)]
pub(crate) struct OrderHook {
    parking: Parking,
}

impl OrderHook {
    pub(crate) fn new() -> Self {
        Self { parking: Parking::new() }
    }
}

/// A delivery that waits for its turn.
struct Delivery<'a> {
    came: Instant,
    leased_job: &'a LeasedJob,
    waiting: Waiting<'a>,
    own: InOrder,
    log: Arc<LogBlob>,
}

/// The next step of a delivery that asks for its turn.
enum Next {
    /// End the wait: run the handler (`None`), put the message back, or delete it.
    Decide(Option<Disposition>),
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
        waiting: Waiting<'_>,
    ) -> Result<Option<Disposition>, Error> {
        let leased_job = context.leased_job;
        // An event without a key has no group, and a storage that keeps the order delivers each job in its turn.
        let Some(own) = position_of(leased_job) else { return Ok(None) };
        let log = leased_job.core.groups.of(&own.entry)?;
        Delivery { came: Instant::now(), leased_job, waiting, own, log }.turn(&self.parking).await
    }

    async fn completing(&self, context: HookContext<'_>, _: Option<&RawValue>, _: bool) -> Result<(), Error> {
        end_turn(context.leased_job, EndState::Done).await
    }

    async fn is_done_elsewhere(&self, context: HookContext<'_>) -> Result<bool, Error> {
        is_done_in_order(context.leased_job).await
    }

    async fn dead_lettering(&self, context: HookContext<'_>, _: &str, _: &str) -> Result<(), Error> {
        end_turn(context.leased_job, EndState::DeadLettered).await
    }
}

impl Delivery<'_> {
    fn now(&self) -> Millis {
        self.leased_job.core.now().into()
    }

    /// Waits for the turn. If it does not come in time, decides about the message instead.
    async fn turn(&self, parking: &Parking) -> Result<Option<Disposition>, Error> {
        let run_time = self.leased_job.lease.max_run_time();
        let mut give_up = self.came + longest_wait(run_time, self.waiting.until_idle);
        let notifier = self.log.notifier(&self.own.entry);
        let mut parked = None;
        let mut nearest = usize::MAX;
        loop {
            let mut first = pin!(notifier.notified());
            // Enabled before the log is read, so that no notification is missed.
            first.as_mut().enable();
            let (ahead, overdue) = match self.next().await? {
                Next::Decide(None) => {
                    let has_left_slot = parked.take().is_some();
                    return self.begin(has_left_slot).await;
                }
                Next::Decide(disposition) => return Ok(disposition),
                Next::Ask => continue,
                Next::Wait { ahead, overdue } => (ahead, overdue),
            };
            if parked.is_none() && self.leased_job.has_deliveries_left() {
                parked = parking.park(self.leased_job.payload_bytes(), ahead);
                // Without room it is put back, within its slot: those that are put back at once have a bound, too.
                if parked.is_some() {
                    self.waiting.leave_slot();
                }
            }
            if ahead < nearest {
                nearest = ahead;
                if self.waiting.until_idle {
                    give_up = Instant::now() + longest_wait(run_time, true);
                }
            }
            if parked.is_none() {
                match self.without_room(ahead, overdue).await? {
                    Next::Decide(disposition) => return Ok(disposition),
                    Next::Ask | Next::Wait { .. } => continue,
                }
            }
            if Instant::now() >= give_up {
                return Ok(Some(Disposition::Release(put_back_delay(ahead, self.own.turn.delivery))));
            }
            tokio::select! {
                biased;
                () = self.leased_job.lease.stop_token().cancelled() => return self.interrupted(),
                () = self.waiting.stop.cancelled() => return self.interrupted(),
                () = first => {}
                () = self.log.watch() => {}
                () = tokio::time::sleep(RECHECK) => {}
                () = tokio::time::sleep_until(give_up) => {}
            }
        }
    }

    /// Returns the next step of a delivery that found no room to wait in: it comes back less often while its group stands still.
    async fn without_room(&self, ahead: usize, overdue: bool) -> Result<Next, Error> {
        if overdue {
            // It cannot stay until it may mark the message.
            return self.mark_overdue().await;
        }
        if self.log.read_if_due().await {
            return Ok(Next::Ask);
        }
        let core = &self.leased_job.core;
        let near = put_back_delay(ahead, self.own.turn.delivery);
        let progress = core.groups.progress(&self.log, &self.own.entry);
        let delay = near.max(least_put_back_delay(progress, ahead));
        Ok(Next::Decide(Some(Disposition::Release(delay))))
    }

    /// Lets the handler run, unless the worker stopped, or the queue was left alone while the delivery waited without its slot.
    async fn begin(&self, has_left_slot: bool) -> Result<Option<Disposition>, Error> {
        keep_expected(self.leased_job);
        if has_left_slot {
            if !self.take_slot().await {
                return self.interrupted();
            }
            // The delivery looks at them when its handler begins.
            let _ = self.leased_job.core.fresh_settings().await;
            if self.waiting.is_left_alone() {
                return Ok(Some(Disposition::Release(Duration::ZERO)));
            }
        }
        Ok(None)
    }

    /// Returns the next step, from the cached log if that is sufficient; otherwise reads the log first.
    async fn next(&self) -> Result<Next, Error> {
        let InOrder { entry, .. } = self.own;
        let (core, now) = (&self.leased_job.core, self.now());
        if let Some(abandoned) = self.log.latest().abandoned(&entry, now) {
            let remove = |payload| remove_blobs(core, &core.name, vec![payload]);
            core.groups.finish_abandoned(&self.log, abandoned, core.store(), remove).await?;
        }
        Ok(match core.groups.position(&self.log, self.own, now).await? {
            Position::First => Next::Decide(None),
            Position::Ended(EndState::Cancelled) => Next::Decide(Some(Disposition::DiscardCancelled)),
            Position::Ended(_) => Next::Decide(Some(Disposition::Discard)),
            Position::Superseded => return Err(superseded()),
            Position::Crowded { ahead } => match self.without_room(ahead, false).await? {
                Next::Decide(Some(Disposition::Release(delay))) => {
                    // Behind how many jobs without a position it is, the log does not say.
                    Next::Decide(Some(Disposition::Release(delay.max(RETRY_DELAY))))
                }
                next => next,
            },
            Position::Full => Next::Decide(Some(Disposition::Release(RETRY_DELAY))),
            // The other copy may run for hours: it is asked ever less often.
            Position::OtherCopy { overdue: false } => {
                let deliveries = self.own.turn.delivery.min(MAX_COPY_WAITS);
                Next::Decide(Some(Disposition::Release(RETRY_DELAY / 8 * deliveries)))
            }
            Position::Behind { ahead, overdue: false } => Next::Wait { ahead, overdue: false },
            // The missing message may arrive with the same request.
            Position::Behind { ahead, overdue: true } if self.came.elapsed() < OVERDUE_GRACE => {
                Next::Wait { ahead, overdue: true }
            }
            Position::Behind { overdue: true, .. } | Position::OtherCopy { overdue: true } => {
                self.mark_overdue().await?
            }
        })
    }

    /// Marks the overdue message before this one: skips it if it has stayed away for long enough, otherwise puts
    /// this message back. If the overdue one could be hidden no more, the next delivery proves that the queue has gone round once.
    async fn mark_overdue(&self) -> Result<Next, Error> {
        let InOrder { entry, turn } = self.own;
        let core = &self.leased_job.core;
        // A storage that cannot count at once may take minutes.
        let counted = tokio::select! {
            biased;
            () = self.leased_job.lease.stop_token().cancelled() => return self.interrupted().map(Next::Decide),
            () = self.waiting.stop.cancelled() => return self.interrupted().map(Next::Decide),
            counted = core.store().queue_properties(&core.name) => counted,
        };
        let messages = match counted {
            Err(error) if error.kind() == StoreErrorKind::Unsupported => UNKNOWN_LENGTH,
            properties => properties?.approximate_count,
        };
        let queue = OVERDUE_TIMEOUT_PER_MESSAGE.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX));
        // The overdue one is hidden for as long as this one.
        let hidden = OVERDUE_TIMEOUT + self.leased_job.hidden();
        let patience = Patience { hidden, queue };
        let now = self.now();
        if self.log.read_and_change(move |log| log.mark_overdue(&entry, turn, patience, now)).await? {
            crate::log::warn!(queue = %core.name, "a FIFO message did not arrive; the jobs behind it go on without it");
            return Ok(Next::Ask);
        }
        Ok(match self.log.latest().position(&entry, turn, now) {
            Some(Position::Behind { overdue: true, .. } | Position::OtherCopy { overdue: true }) | None => {
                Next::Decide(Some(Disposition::Release(core.runtime().jitter(RETRY_DELAY, 0.5..=1.0))))
            }
            Some(_) => Next::Ask,
        })
    }

    /// Waits for a slot. Returns false if the delivery must end first. A worker that has none for long leaves the message to others.
    async fn take_slot(&self) -> bool {
        let longest_wait = longest_wait(self.leased_job.lease.max_run_time(), self.waiting.until_idle);
        tokio::select! {
            biased;
            () = self.leased_job.lease.stop_token().cancelled() => false,
            () = self.waiting.stop.cancelled() => false,
            () = self.waiting.take_slot() => true,
            () = tokio::time::sleep(longest_wait) => false,
        }
    }

    /// Decides about a waiting delivery whose lease was lost, that has waited for too long, or whose worker is stopping or has no slot.
    fn interrupted(&self) -> Result<Option<Disposition>, Error> {
        match self.leased_job.lease.check_not_ended() {
            Ok(()) => Ok(Some(Disposition::Release(Duration::ZERO))),
            Err(_) => Err(superseded()),
        }
    }
}
