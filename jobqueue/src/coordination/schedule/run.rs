//! Running a schedule on its leader.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jiff::{SignedDuration, Timestamp};

use super::CatchUp;
use super::state::State;
use super::timetable::Timetable;
use crate::clock::Clock;
use crate::coordination::leader::{Leader, Leadership};
use crate::error::{Error, ErrorKind};
use crate::job::outcome::chain;
use crate::message::QueueMessage;
use crate::name::BlobName;
use crate::queue::{Identity, Queue, SendOptions};
use crate::worker::BackgroundContext;

/// The source of all scheduled jobs: of two leaders that send the same slot, whatever their programs are, the job is one.
const SOURCE: &str = "/jobqueue/schedule";

/// The wall clock is looked at this often, in case it was set.
const LOOK: Duration = Duration::from_secs(30);
/// The delay up to which a slot is not missed yet: longer than a fail-over.
const ON_TIME: SignedDuration = SignedDuration::from_secs(60);
/// By how much the clocks of workers may differ without a word.
const AHEAD: SignedDuration = SignedDuration::from_secs(300);
/// Between two tries after an error.
const RETRY: Duration = Duration::from_secs(5);
/// The most tries to make the message of a slot before the slot is left out. Half a minute, so that the slots behind it are still
/// on time.
const TRIES: u32 = 6;

/// One schedule, put together.
pub(super) struct Runner<M> {
    pub(super) name: String,
    pub(super) state: BlobName,
    pub(super) timetable: Timetable,
    pub(super) missed: CatchUp,
    pub(super) lease: Option<Duration>,
    /// From the slot's time to its message.
    pub(super) make: Arc<dyn Fn(SystemTime) -> M + Send + Sync>,
}

impl<M: QueueMessage> Runner<M> {
    pub(super) async fn run(self, context: BackgroundContext) {
        let stop = context.stop.clone();
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.stand(&context) => {}
        }
    }

    async fn stand(&self, context: &BackgroundContext) {
        loop {
            let error = match self.candidate(context) {
                Ok(leader) => {
                    let led = leader.run_while_leader(|leadership| self.lead(context, leadership)).await;
                    let Err(error) = led else { continue };
                    error
                }
                Err(error) => error,
            };
            tracing::error!(schedule = %self.name, error = %chain(&error), "the schedule does not run; trying again");
            tokio::time::sleep(RETRY).await;
        }
    }

    fn candidate(&self, context: &BackgroundContext) -> Result<Leader, Error> {
        let leader = Leader::new(context.storage(), format!("schedules/{}", self.name))?;
        let leader = match self.lease {
            Some(lease) => leader.lease(lease),
            None => leader,
        };
        Ok(leader.with(context.clock(), context.renewer()))
    }

    /// Sends slots for as long as leadership lasts.
    async fn lead(&self, context: &BackgroundContext, leadership: Leadership) {
        let clock = context.clock();
        if let Err(error) = self.warn_of_the_future(context, &*clock).await {
            tracing::debug!(schedule = %self.name, error = %chain(&error), "the state was not looked at");
        }
        let mut failures = Failures::default();
        while !leadership.token().is_cancelled() {
            let pause = match self.step(context, &*clock, &leadership, &mut failures).await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(schedule = %self.name, error = %chain(&error), "a slot was not sent; trying again");
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Slots that were sent and have not come yet are the work of a clock that was ahead.
    async fn warn_of_the_future(&self, context: &BackgroundContext, clock: &dyn Clock) -> Result<(), Error> {
        let now = timestamp(clock)?;
        let state = State::load(context.storage().blobs(), &self.state, now).await?;
        if state.done.duration_since(now) > AHEAD {
            tracing::warn!(
                schedule = %self.name,
                until = %state.done,
                "nothing is sent until then: a clock that was ahead has sent the slots before; delete the schedule's state to begin anew"
            );
        }
        Ok(())
    }

    /// Sends what is due; returns how long to wait.
    async fn step(
        &self,
        context: &BackgroundContext,
        clock: &dyn Clock,
        leadership: &Leadership,
        failures: &mut Failures,
    ) -> Result<Duration, Error> {
        let now = timestamp(clock)?;
        let mut state = State::load(context.storage().blobs(), &self.state, now).await?;
        let queue = context.queue::<M>().await?;
        if let Some(slot) = state.pending {
            // Whoever led before may have sent it.
            if !self.is_waiting(&queue, slot).await {
                self.send_or_skip(&queue, slot, failures).await?;
            }
            state.finish(slot).await?;
        }
        for slot in self.due(state.done, now) {
            if !leadership.has_control() {
                return Ok(Duration::ZERO);
            }
            state.begin(slot).await?;
            self.send_or_skip(&queue, slot, failures).await?;
            state.finish(slot).await?;
        }
        if let Some(slot) = self.timetable.last_until(now).filter(|slot| *slot > state.done) {
            // CatchUp and left out.
            state.finish(slot).await?;
        }
        let next = self.timetable.next_after(state.done.max(now));
        let wait = next.map(|next| next.duration_since(timestamp(clock).unwrap_or(now)));
        Ok(wait.map_or(LOOK, |wait| Duration::try_from(wait).unwrap_or_default().min(LOOK)))
    }

    fn due(&self, done: Timestamp, now: Timestamp) -> Vec<Timestamp> {
        let since = now.checked_sub(ON_TIME).unwrap_or(Timestamp::MIN);
        // At most one a second.
        let on_time = self.timetable.due(done.max(since), now, usize::MAX);
        match self.missed {
            CatchUp::Skip => on_time,
            CatchUp::Once if on_time.is_empty() => self.timetable.due(done, now, 1),
            CatchUp::Once => on_time,
            CatchUp::All(most) => self.timetable.due(done, now, on_time.len().max(most as usize)),
        }
    }

    /// Sends a slot. One whose message cannot be made is left out in the end: what is wrong with it may concern no other slot,
    /// and must not hold them up for ever. A storage that fails is waited for.
    async fn send_or_skip(
        &self,
        queue: &Queue<M>,
        slot: Timestamp,
        failures: &mut Failures,
    ) -> Result<(), Error> {
        let Err(error) = self.send(queue, slot).await else { return Ok(()) };
        let is_of_message = matches!(error.kind(), ErrorKind::Invalid | ErrorKind::TooLarge);
        if !is_of_message || failures.another(slot) < TRIES {
            return Err(error);
        }
        tracing::error!(
            schedule = %self.name, %slot, error = %chain(&error), tries = TRIES,
            "the slot is left out: its message cannot be made"
        );
        Ok(())
    }

    async fn send(&self, queue: &Queue<M>, slot: Timestamp) -> Result<(), Error> {
        // A panic would end the schedule on this worker for good, and without a word.
        let made = catch_unwind(AssertUnwindSafe(|| (self.make)(slot.into())));
        let message = made.map_err(|_| {
            Error::new(ErrorKind::Invalid, "the function that makes the message has panicked")
        })?;
        let sent = queue.send_with(&message, SendOptions::new().source(SOURCE).id(self.id(slot))).await?;
        tracing::debug!(schedule = %self.name, id = sent.id(), "slot sent");
        Ok(())
    }

    fn id(&self, slot: Timestamp) -> String {
        format!("schedule/{}/{slot}", self.name)
    }

    /// Returns whether the slot's message is seen in the queue; a peek shows the first 32.
    async fn is_waiting(&self, queue: &Queue<M>, slot: Timestamp) -> bool {
        queue.core().shows(&Identity::new(SOURCE, self.id(slot))).await
    }
}

/// The number of failures of this leader to make the message of a slot.
#[derive(Debug, Default)]
struct Failures {
    slot: Option<Timestamp>,
    count: u32,
}

impl Failures {
    /// Counts one more of `slot`.
    fn another(&mut self, slot: Timestamp) -> u32 {
        if self.slot != Some(slot) {
            *self = Self { slot: Some(slot), count: 0 };
        }
        self.count += 1;
        self.count
    }
}

fn timestamp(clock: &dyn Clock) -> Result<Timestamp, Error> {
    Timestamp::try_from(clock.now())
        .map_err(|e| Error::new(ErrorKind::Storage, "the clock is outside the calendar").with_source(e))
}
