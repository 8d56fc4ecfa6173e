//! Running a schedule on its leader.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use super::Missed;
use super::state::State;
use super::timetable::Timetable;
use crate::coordination::leader::{Leader, Leadership};
use crate::queue::{Queue, SendOptions};
use crate::vocabulary::clock::Clock;
use crate::vocabulary::error::{Error, ErrorKind};
use crate::vocabulary::message::QueueMessage;
use crate::vocabulary::name::BlobName;
use crate::vocabulary::outcome::chain;
use crate::worker::BackgroundContext;

/// The wall clock is looked at this often, in case it was set.
const LOOK: Duration = Duration::from_secs(30);
/// How late a slot is not missed yet: longer than a fail-over.
const ON_TIME: SignedDuration = SignedDuration::from_secs(60);
/// Between two tries after an error.
const RETRY: Duration = Duration::from_secs(5);

/// One schedule, put together.
pub(super) struct Runner<M> {
    pub(super) name: String,
    pub(super) state: BlobName,
    pub(super) timetable: Timetable,
    pub(super) missed: Missed,
    pub(super) make: Arc<dyn Fn() -> M + Send + Sync>,
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
            let error = match Leader::new(context.storage(), format!("schedules/{}", self.name)) {
                Ok(leader) => {
                    let leader = leader.with(context.clock(), context.keeper());
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

    /// Sends slots for as long as leadership lasts.
    async fn lead(&self, context: &BackgroundContext, leadership: Leadership) {
        let clock = context.clock();
        while !leadership.token().is_cancelled() {
            let pause = match self.step(context, &*clock, &leadership).await {
                Ok(pause) => pause,
                Err(error) => {
                    tracing::warn!(schedule = %self.name, error = %chain(&error), "a slot was not sent; trying again");
                    RETRY
                }
            };
            tokio::time::sleep(pause).await;
        }
    }

    /// Sends what is due; returns how long to wait.
    async fn step(
        &self,
        context: &BackgroundContext,
        clock: &dyn Clock,
        leadership: &Leadership,
    ) -> Result<Duration, Error> {
        let now = timestamp(clock)?;
        let mut state = State::load(context.storage().blobs(), &self.state, now).await?;
        let queue = context.queue::<M>().await?;
        if let Some(slot) = state.pending {
            // Whoever led before may have sent it.
            if !self.is_waiting(&queue, slot).await {
                self.send(&queue, slot).await?;
            }
            state.finish(slot).await?;
        }
        for slot in self.due(state.done, now) {
            if !leadership.has_control() {
                return Ok(Duration::ZERO);
            }
            state.begin(slot).await?;
            self.send(&queue, slot).await?;
            state.finish(slot).await?;
        }
        if let Some(slot) = self.timetable.last_until(now).filter(|slot| *slot > state.done) {
            // Missed and left out.
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
            Missed::Skip => on_time,
            Missed::Once if on_time.is_empty() => self.timetable.due(done, now, 1),
            Missed::Once => on_time,
            Missed::All(most) => self.timetable.due(done, now, on_time.len().max(most as usize).max(1)),
        }
    }

    async fn send(&self, queue: &Queue<M>, slot: Timestamp) -> Result<(), Error> {
        let sent = queue.send_with(&(self.make)(), SendOptions::new().id(self.id(slot))).await?;
        tracing::debug!(schedule = %self.name, id = sent.id(), "slot sent");
        Ok(())
    }

    fn id(&self, slot: Timestamp) -> String {
        format!("schedule/{}/{slot}", self.name)
    }

    /// Whether the slot's message is seen in the queue; a peek shows the first 32.
    async fn is_waiting(&self, queue: &Queue<M>, slot: Timestamp) -> bool {
        queue.channel().shows(&self.id(slot)).await
    }
}

fn timestamp(clock: &dyn Clock) -> Result<Timestamp, Error> {
    Timestamp::try_from(clock.now())
        .map_err(|e| Error::new(ErrorKind::Storage, "the clock is outside the calendar").with_source(e))
}
