//! Defines what the worker does for messages that keep to the order of their key.
//!
//! Who is not the first of its group waits here, without a slot, until the one before it is done: this worker tells at once;
//! what other workers do is found by looking at the group's log.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::entry::How;
use super::log::{Millis, Position};
use super::message::{HEADER, InOrder, superseded};
use super::parking::{Parking, patience, put_back};
use super::store::LogBlob;
use crate::entropy;
use crate::error::Error;
use crate::job::JobInfo;
use crate::queue::LeasedJob;
use crate::worker::{Decision, Hook, HookContext, Waiting};

/// Between two looks at a log that another process may have changed: doubling.
const LOOK: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// The time that a message is put back that finds its log full, another copy in turn, or the one before it overdue.
const LONG: Duration = Duration::from_secs(20);
/// The time that one behind an overdue message waits before it presses.
const HESITATION: Duration = Duration::from_secs(2);
/// The time that those behind an overdue message press at least, besides the queue's visibility timeout.
const PRESSURE: Duration = Duration::from_secs(120);
/// The same for each message in the queue: as long as it takes to go by.
const PRESSURE_FOR_EACH: Duration = Duration::from_millis(50);

/// Takes part in every delivery whose sender asked for the order of its key, and in no other.
#[derive(Debug)]
pub(crate) struct FifoHook {
    parking: Parking,
}

impl FifoHook {
    pub(crate) fn new() -> Self {
        Self { parking: Parking::new() }
    }
}

/// One delivery on its way to its turn.
struct Delivery<'a> {
    came: Instant,
    leased_job: &'a LeasedJob,
    waiting: Waiting<'a>,
    own: InOrder,
    log: Arc<LogBlob>,
}

/// The next step for a delivery that is not first in its group.
enum Next {
    /// The handler runs, or the message is put back or deleted.
    Decide(Decision),
    /// So many are before it.
    Wait { ahead: usize },
    /// Something has changed.
    Ask,
}

#[async_trait]
impl Hook for FifoHook {
    fn applies_to(&self, job: &JobInfo) -> bool {
        job.headers.contains_key(HEADER)
    }

    async fn admit(&self, context: HookContext<'_>, waiting: Waiting<'_>) -> Result<Decision, Error> {
        let leased_job = context.leased_job;
        // An event without a key has no order to keep to.
        let Some(own) = leased_job.in_order() else { return Ok(Decision::Run) };
        let log = leased_job.core.fifo.of(&own.entry)?;
        Delivery { came: Instant::now(), leased_job, waiting, own, log }.turn(&self.parking).await
    }

    async fn completing(&self, context: HookContext<'_>, _: Option<&RawValue>, _: bool) -> Result<(), Error> {
        context.leased_job.end_position(How::Done).await
    }

    async fn dead_lettering(&self, context: HookContext<'_>, _: &str, _: &str) -> Result<(), Error> {
        context.leased_job.end_position(How::DeadLettered).await
    }
}

impl Delivery<'_> {
    fn now(&self) -> Millis {
        self.leased_job.core.options.clock.now().into()
    }

    /// Waits for the turn, or decides what to do without.
    async fn turn(&self, parking: &Parking) -> Result<Decision, Error> {
        let run_time = self.leased_job.core.options.max_run_time;
        let mut give_up = self.came + patience(run_time, self.waiting.until_idle);
        let notifier = self.log.notifier(&self.own.entry);
        let mut parked = None;
        let (mut look, mut nearest) = (LOOK.0, usize::MAX);
        loop {
            let mut first = pin!(notifier.notified());
            // Before the log is looked at, so that nothing is missed.
            first.as_mut().enable();
            let ahead = match self.next().await? {
                Next::Decide(Decision::Run) => {
                    if parked.take().is_some() && !self.take_slot().await {
                        return self.interrupted();
                    }
                    self.leased_job.keep_expected();
                    return Ok(Decision::Run);
                }
                Next::Decide(decision) => return Ok(decision),
                Next::Ask => continue,
                Next::Wait { ahead } => ahead,
            };
            if parked.is_none() {
                parked = parking.park(self.leased_job.payload_bytes(), ahead);
                self.waiting.leave_slot();
            }
            if self.waiting.until_idle && ahead < nearest {
                // A group that moves is waited for.
                give_up = Instant::now() + patience(run_time, true);
                nearest = ahead;
            }
            if parked.is_none() || Instant::now() >= give_up {
                return Ok(Decision::Wait(put_back(ahead, self.own.turn.delivery)));
            }
            tokio::select! {
                biased;
                () = self.leased_job.lease.lost().cancelled() => return self.interrupted(),
                () = self.waiting.stop.cancelled() => return self.interrupted(),
                () = first => {}
                () = self.look(look) => look = (look * 2).min(LOOK.1),
                () = tokio::time::sleep_until(self.came + HESITATION), if self.came.elapsed() < HESITATION => {}
                () = tokio::time::sleep_until(give_up) => {}
            }
        }
    }

    /// Returns where the delivery stands: by the log as it is known here, if that tells, else by a new one.
    async fn next(&self) -> Result<Next, Error> {
        let InOrder { entry, turn } = self.own;
        let now = self.now();
        if let Some(abandoned) = self.log.latest().abandoned(&entry, now) {
            self.leased_job.core.finish_abandoned(&self.log, abandoned).await?;
        }
        let position = match self.log.latest().position(&entry, turn, now) {
            Some(position) => position,
            None => self.log.ask(move |log| log.stand(&entry, turn, now)).await?,
        };
        Ok(match position {
            Position::First => Next::Decide(Decision::Run),
            Position::Ended => Next::Decide(Decision::Duplicate),
            Position::Superseded => return Err(superseded()),
            Position::Full => Next::Decide(Decision::Wait(LONG)),
            Position::OtherCopy { overdue: false } => Next::Decide(Decision::Wait(LONG / 8)),
            Position::Behind { ahead, overdue: false } => Next::Wait { ahead },
            // It may come with the same request.
            Position::Behind { ahead, overdue: true } if self.came.elapsed() < HESITATION => {
                Next::Wait { ahead }
            }
            Position::Behind { overdue: true, .. } | Position::OtherCopy { overdue: true } => {
                self.press().await?
            }
        })
    }

    /// The message before it is overdue. Presses, and comes again: that shows that the queue goes by.
    async fn press(&self) -> Result<Next, Error> {
        let InOrder { entry, turn } = self.own;
        let core = &self.leased_job.core;
        let messages = core.store().queue_properties(&core.name).await?.approximate_count;
        let queue = PRESSURE_FOR_EACH.saturating_mul(u32::try_from(messages).unwrap_or(u32::MAX));
        let patience = PRESSURE + self.leased_job.settings.timeout + queue;
        let now = self.now();
        if self.log.ask(move |log| log.press(&entry, turn, patience, now)).await? {
            tracing::warn!(queue = %core.name, "a message in order did not come; those behind it go on without it");
            return Ok(Next::Ask);
        }
        Ok(match self.log.latest().position(&entry, turn, now) {
            Some(Position::Behind { overdue: true, .. } | Position::OtherCopy { overdue: true }) | None => {
                Next::Decide(Decision::Wait(entropy::jitter(LONG, 0.5..=1.0)))
            }
            Some(_) => Next::Ask,
        })
    }

    /// Looks at the log after a while; one of those who wait here does it for all.
    async fn look(&self, after: Duration) {
        let _looking = self.log.looking.lock().await;
        tokio::time::sleep(after).await;
        if let Err(error) = self.log.look().await {
            tracing::debug!(queue = %self.leased_job.core.name, %error, "a group log is not read");
        }
    }

    /// Waits for a slot; false if the delivery is to end meanwhile.
    async fn take_slot(&self) -> bool {
        tokio::select! {
            biased;
            () = self.leased_job.lease.lost().cancelled() => false,
            () = self.waiting.stop.cancelled() => false,
            () = self.waiting.take_slot() => true,
        }
    }

    /// Returns what becomes of a delivery that waited when its lease was lost or its worker told to stop.
    fn interrupted(&self) -> Result<Decision, Error> {
        if self.leased_job.lease.loss().is_some() {
            Err(superseded())
        } else {
            Ok(Decision::Wait(Duration::ZERO))
        }
    }
}
