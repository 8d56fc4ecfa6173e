//! Runs a schedule on its leader.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt;
use jiff::{SignedDuration, Timestamp};
use tokio::sync::Mutex;

use super::CatchUp;
use super::candidacy::{Candidacy, RETRY_PAUSE};
use super::record::ScheduleDescription;
use super::state::ScheduleState;
use super::timetable::Timetable;
use crate::coordination::leader::{Leader, Leadership};
use crate::envelope::Identity;
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::message::QueueMessage;
use crate::queue_core::Queue;
use crate::receive::is_waiting;
use crate::runtime::Runtime;
use crate::storage::BlobName;
use crate::worker::BackgroundContext;

/// The source of all scheduled jobs. It is the same for all programs, so that a slot that two leaders send is
/// a single job.
const SOURCE: &str = "/jobqueue/schedule";

/// The maximum time between two readings of the wall clock, which may have been set.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// The delay up to which a slot is on time: longer than a fail-over.
const MAX_ON_TIME_DELAY: SignedDuration = SignedDuration::from_secs(60);
/// The difference between the clocks of workers up to which no warning is logged.
const TOLERATED_SKEW: SignedDuration = SignedDuration::from_secs(300);
/// The time that the current step has left when the worker stops. The worker waits two seconds longer, in
/// which the lease is released.
const STEP_GRACE: Duration = Duration::from_secs(3);
/// The number of failures to make the message of a slot after which the slot is skipped. The attempts take
/// half a minute, so that later slots are still on time.
const MAX_SLOT_FAILURES: u32 = 6;

/// A schedule with everything that is needed to run it.
pub(super) struct Runner<M> {
    pub(super) name: String,
    pub(super) state: BlobName,
    pub(super) about: ScheduleDescription,
    pub(super) timetable: Timetable,
    pub(super) missed: CatchUp,
    pub(super) lease: Option<Duration>,
    /// Makes the message of a slot from its time.
    pub(super) make: Arc<dyn Fn(SystemTime) -> M + Send + Sync>,
    /// Locked during a term of leadership.
    pub(super) sent: Mutex<SentSlots>,
}

impl<M: QueueMessage> Runner<M> {
    pub(super) async fn run(self, candidacy: Arc<Candidacy>, context: BackgroundContext) {
        candidacy.whenever_leading(&context.stop, || self.campaign(&candidacy, &context)).await;
    }

    /// Stands as a candidate, and leads, until the worker stops. Retries after errors.
    async fn campaign(&self, candidacy: &Arc<Candidacy>, context: &BackgroundContext) {
        while let Err(error) = self.campaign_once(candidacy, context).await {
            crate::log::error!(schedule = %self.name, error = %chain(&error), "running the schedule failed; trying again");
            context.stop.run_until_cancelled(tokio::time::sleep(RETRY_PAUSE)).await;
        }
    }

    async fn campaign_once(
        &self,
        candidacy: &Arc<Candidacy>,
        context: &BackgroundContext,
    ) -> Result<(), Error> {
        let leader = Leader::new(context.storage(), format!("schedules/{}", self.name))?;
        let leader = match self.lease {
            Some(lease) => leader.lease(lease),
            None => leader,
        };
        let runtime = context.storage().runtime();
        while let Some(leadership) = context.stop.run_until_cancelled(leader.lead()).await {
            let leadership = leadership?;
            // A task of its own, because this one may be blocked.
            drop(runtime.spawn(Arc::clone(candidacy).step_down_after(leadership.share())));
            let led = leader.run_term(leadership, async |leadership| {
                leadership.while_polled(self.lead_until_stopped(context, &leadership)).await
            });
            led.await;
        }
        Ok(())
    }

    /// Sends slots while leadership lasts. When the worker stops, a slot that is being sent has
    /// [`STEP_GRACE`] to be recorded as done: otherwise the next leader sends it again.
    async fn lead_until_stopped(&self, context: &BackgroundContext, leadership: &Leadership) {
        let grace_ended = async {
            context.stop.cancelled().await;
            tokio::time::sleep(STEP_GRACE).await;
        };
        tokio::select! {
            biased;
            () = self.lead(context, leadership) => {}
            () = grace_ended => {}
        }
    }

    async fn lead(&self, context: &BackgroundContext, leadership: &Leadership) {
        if let Err(error) = self.warn_if_sent_ahead(context).await {
            crate::log::debug!(schedule = %self.name, error = %chain(&error), "reading the state failed");
        }
        let mut sent = self.sent.lock().await;
        while !leadership.token().is_cancelled() && !context.stop.is_cancelled() {
            let pause = match self.step(context, leadership, &mut sent).await {
                Ok(pause) => pause,
                Err(error) => {
                    crate::log::warn!(schedule = %self.name, error = %chain(&error), "sending a slot failed; trying again");
                    RETRY_PAUSE
                }
            };
            context.stop.run_until_cancelled(tokio::time::sleep(pause)).await;
        }
    }

    /// Warns if slots are done whose time has not come yet: the clock of a leader was ahead.
    async fn warn_if_sent_ahead(&self, context: &BackgroundContext) -> Result<(), Error> {
        let now = timestamp(context.storage().runtime())?;
        let state = ScheduleState::load(context.storage(), &self.state, now, &self.about).await?;
        if state.done.duration_since(now) > TOLERATED_SKEW {
            crate::log::warn!(
                schedule = %self.name,
                until = %state.done,
                "a clock that was ahead has already sent the slots up to then; to start again from now, delete the schedule's state"
            );
        }
        Ok(())
    }

    /// Sends the due slots. Returns the time to wait until the next step.
    async fn step(
        &self,
        context: &BackgroundContext,
        leadership: &Leadership,
        sent: &mut SentSlots,
    ) -> Result<Duration, Error> {
        let runtime = context.storage().runtime();
        let now = timestamp(runtime)?;
        let mut state = ScheduleState::load(context.storage(), &self.state, now, &self.about).await?;
        let queue = context.queue::<M>().await?;
        if let Some(slot) = state.pending {
            // The former leader may have sent the slot.
            if sent.slot != Some(slot) && !self.is_waiting(&queue, self.slot_id(slot)).await {
                if state.paused {
                    crate::log::warn!(schedule = %self.name, %slot, "the schedule was paused before it was certain that the slot was sent; the slot is not sent again");
                } else {
                    self.send_or_skip(&queue, slot, leadership, sent).await?;
                }
            }
            state = state.write(|stored| stored.finished(slot)).await?;
        }
        if let Some(at) = state.triggered {
            if sent.trigger != Some(at) && !self.is_waiting(&queue, self.trigger_id(at)).await {
                self.send_trigger(&queue, at, leadership).await?;
                sent.trigger = Some(at);
            }
            state = state.write(|stored| stored.answered(at)).await?;
        }
        for slot in self.due(state.done, now) {
            // Slots that become due during the pause are skipped.
            if state.paused {
                break;
            }
            if !leadership.has_control() || context.stop.is_cancelled() {
                return Ok(Duration::ZERO);
            }
            state = state.write(|stored| stored.begun(slot)).await?;
            // An operator may have paused the schedule since the state was read.
            if !state.paused {
                self.send_or_skip(&queue, slot, leadership, sent).await?;
            }
            state = state.write(|stored| stored.finished(slot)).await?;
        }
        if let Some(slot) = self.timetable.last_until(now).filter(|slot| *slot > state.done) {
            // A missed slot that the policy skips.
            state = state.write(|stored| stored.finished(slot)).await?;
        }
        let next = self.timetable.next_after(state.done.max(now));
        let wait = next.map(|next| next.duration_since(timestamp(runtime).unwrap_or(now)));
        Ok(wait.map_or(CLOCK_CHECK_INTERVAL, |wait| {
            Duration::try_from(wait).unwrap_or_default().min(CLOCK_CHECK_INTERVAL)
        }))
    }

    /// Sends the job of a trigger. Skips the trigger if its message cannot be made.
    async fn send_trigger(
        &self,
        queue: &Queue<M>,
        at: Timestamp,
        leadership: &Leadership,
    ) -> Result<(), Error> {
        match self.send_under(queue, at, self.trigger_id(at), leadership).await {
            Err(error) if matches!(error.kind(), ErrorKind::Invalid | ErrorKind::TooLarge) => {
                crate::log::error!(schedule = %self.name, error = %chain(&error), "the trigger is skipped: its message cannot be created");
                Ok(())
            }
            sent => sent,
        }
    }

    fn due(&self, done: Timestamp, now: Timestamp) -> Vec<Timestamp> {
        let since = now.checked_sub(MAX_ON_TIME_DELAY).unwrap_or(Timestamp::MIN);
        // At most one slot per second.
        let on_time = self.timetable.due(done.max(since), now, usize::MAX);
        match self.missed {
            CatchUp::Skip => on_time,
            CatchUp::Once if on_time.is_empty() => self.timetable.due(done, now, 1),
            CatchUp::Once => on_time,
            CatchUp::All(most) => self.timetable.due(done, now, on_time.len().max(most as usize)),
        }
    }

    /// Sends a slot. If its message cannot be made, skips the slot after [`MAX_SLOT_FAILURES`] failures: the
    /// cause may concern no other slot, and must not delay the others forever. If the storage fails, the slot
    /// waits, and later slots may be missed.
    async fn send_or_skip(
        &self,
        queue: &Queue<M>,
        slot: Timestamp,
        leadership: &Leadership,
        sent: &mut SentSlots,
    ) -> Result<(), Error> {
        if let Err(error) = self.send_under(queue, slot, self.slot_id(slot), leadership).await {
            let is_of_message = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::TooLarge);
            if !is_of_message || sent.count_failure(slot) < MAX_SLOT_FAILURES {
                return Err(error);
            }
            crate::log::error!(
                schedule = %self.name, %slot, error = %chain(&error), tries = MAX_SLOT_FAILURES,
                "the slot is skipped: its message cannot be created"
            );
        }
        sent.slot = Some(slot);
        Ok(())
    }

    async fn send_under(
        &self,
        queue: &Queue<M>,
        slot: Timestamp,
        id: String,
        leadership: &Leadership,
    ) -> Result<(), Error> {
        let send = async {
            let message = (self.make)(slot.into());
            if !leadership.has_control() {
                // This future is about to be dropped. As an error that counts, it happens to a slot a few
                // times, and not in each term for ever.
                let text = "the function that makes the message has blocked its thread for so long that the leadership was lost";
                return Err(Error::new(ErrorKind::Invalid, text));
            }
            queue.send(&message).source(SOURCE).id(id).await
        };
        // A panic of `make`, or of the message during validation and encoding, would silently end the
        // schedule on this worker.
        let sent = AssertUnwindSafe(send).catch_unwind().await.unwrap_or_else(|_| {
            let text = "the function that makes the message, or the message, has panicked";
            Err(Error::new(ErrorKind::Invalid, text))
        })?;
        crate::log::debug!(schedule = %self.name, id = sent.id(), "slot sent");
        Ok(())
    }

    fn trigger_id(&self, at: Timestamp) -> String {
        format!("schedule/{}/trigger/{at}", self.name)
    }

    fn slot_id(&self, slot: Timestamp) -> String {
        format!("schedule/{}/{slot}", self.name)
    }

    /// Returns whether the message with this id is visible in the queue, among the first 32 messages that a
    /// peek returns.
    async fn is_waiting(&self, queue: &Queue<M>, id: String) -> bool {
        is_waiting(queue.core(), &Identity::new(SOURCE, id)).await
    }
}

/// The slots that this process has sent, even if the schedule's state does not show them yet. Kept over all
/// terms of leadership.
#[derive(Debug, Default)]
pub(super) struct SentSlots {
    /// The last slot that was sent or skipped.
    slot: Option<Timestamp>,
    /// The last trigger whose job was sent or skipped.
    trigger: Option<Timestamp>,
    /// The slot whose message could not be made, and the number of failures.
    failed: Option<(Timestamp, u32)>,
}

impl SentSlots {
    /// Counts a failure to make the message of `slot`, and returns the number of failures.
    fn count_failure(&mut self, slot: Timestamp) -> u32 {
        let former = self.failed.filter(|(failed, _)| *failed == slot).map_or(0, |(_, failures)| failures);
        self.failed = Some((slot, former + 1));
        former + 1
    }
}

fn timestamp(runtime: &Runtime) -> Result<Timestamp, Error> {
    Timestamp::try_from(runtime.now())
        .map_err(|e| Error::new(ErrorKind::Storage, "the clock is outside the calendar").with_source(e))
}
