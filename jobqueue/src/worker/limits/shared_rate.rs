//! A rate that the workers of all processes share. A record of the storage says up to which time the rate is
//! spent. A process reserves the times behind that for its next jobs, a block at a time, and begins a job at
//! each.
//!
//! ```text
//!  spent    reserved by A   reserved by B    what may still be reserved
//! ────────┬───────────────┬───────────────┬──────────────┬──────► time of the storage
//!         │            full_at moves here ┘       now + HORIZON
//! ```
//!
//! - **Who has work reserves.** While jobs begin, the blocks grow up to half a second of the rate. A poller
//!   whose last fetch brought no job asks the queue without a reservation, and the job that it finds reserves
//!   its time before it begins: an idle worker reserves nothing, and takes nothing from those with work.
//! - **A time that is not used is lost** soon after it has passed, and is not given back. So a process that is
//!   killed takes at most a block of the rate with it.
//! - **No clock of a machine counts.** The answer to each write of the record has the storage's time, which the
//!   process continues by its monotonic clock.
//! - **Without the storage nothing begins**, except at times that were reserved before.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use crate::job::outcome::chain;
use crate::json_blob::{Edit, JsonBlob, Known, Version};
use crate::runtime::Runtime;
use crate::storage::{BlobName, BlobStore, ContainerName, NameError, StoreError, StoreErrorKind};
use crate::sync::lock;

/// The container of the records of rates.
const CONTAINER: &str = "jobqueue-rates";
/// The maximum size of a record in bytes.
const MAX_RECORD_BYTES: u64 = 4_096;
/// The part of the rate that a process reserves at once.
const MAX_BLOCK_TIME: Duration = Duration::from_millis(500);
/// The maximum number of times that a process reserves at once.
const MAX_BLOCK: u32 = 10_000;
/// How long before a time it may be reserved: two processes can have blocks at once.
const HORIZON: Duration = Duration::from_secs(1);
/// How long after a time a job may begin at it. A fetch and a download lie between.
const GRACE: Duration = Duration::from_secs(1);
/// The time before now that may be reserved, so that the rate is not lost while a request is under way.
const CATCH_UP: Duration = Duration::from_millis(250);
/// The maximum time of a reservation.
const MAX_RESERVING_TIME: Duration = Duration::from_secs(5);
/// The longest time without another look at the record: its rate may be raised meanwhile.
const MAX_WAIT: Duration = Duration::from_secs(60);
/// The pause after a reservation that failed.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// The difference in microseconds between the time of an answer and the one that was expected which shows that
/// a clock was set, or the machine suspended. Azure's answers have whole seconds.
const MAX_ERROR: u64 = 1_500_000;

/// The record of a rate. Its times are the storage's, in microseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct RateRecord {
    /// The time at which the whole burst will be available again.
    full_at: u64,
    /// The time of the change.
    changed: u64,
}

impl RateRecord {
    /// Returns when the whole burst will be available again. If the storage's clock was set back since the
    /// change, what is spent stays spent, by the new time.
    fn full_at_now(self, now: u64) -> u64 {
        let set_back = Some(self.changed.saturating_sub(now)).filter(|by| *by > MAX_ERROR);
        self.full_at.saturating_sub(set_back.unwrap_or_default())
    }
}

/// The rate and its burst.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rate {
    /// The time between two jobs.
    pub(super) interval: Duration,
    pub(super) burst: u32,
}

impl Rate {
    /// Returns the times of `wanted` jobs, or of a block if that is less, and the record with them. Returns the
    /// time until they can be reserved if not all of them can now: reserved one by one, the times would cost a
    /// request each.
    fn reserve(
        self,
        record: Option<RateRecord>,
        now: u64,
        wanted: u32,
    ) -> Result<(Vec<u64>, RateRecord), Duration> {
        let (interval, count) = (micros(self.interval).max(1), u64::from(wanted.clamp(1, self.max_block())));
        let full_at = record.map_or(0, |record| record.full_at_now(now));
        let start = full_at.max(now.saturating_sub(micros(CATCH_UP)));
        let burst_time = interval.saturating_mul(u64::from(self.burst));
        let first = start.saturating_add(interval).saturating_sub(burst_time);
        let time = |place: u64| first.saturating_add(interval.saturating_mul(place));
        let (last, latest) = (time(count - 1), now.saturating_add(micros(HORIZON)));
        if last > latest {
            return Err(Duration::from_micros(last - latest));
        }
        let full_at = start.saturating_add(interval.saturating_mul(count));
        Ok(((0..count).map(time).collect(), RateRecord { full_at, changed: now }))
    }

    fn max_block(self) -> u32 {
        let block = MAX_BLOCK_TIME.as_micros() / self.interval.as_micros().max(1);
        u32::try_from(block).unwrap_or(MAX_BLOCK).clamp(1, MAX_BLOCK)
    }
}

pub(super) struct SharedRate {
    record: JsonBlob<RateRecord>,
    rate: Rate,
    state: Mutex<Reserved>,
    /// Locked while the record is changed.
    reserving: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Reserved {
    /// The times at which jobs may begin, the earliest first.
    times: VecDeque<Instant>,
    /// The number of times that the next reservation asks for; 0 if the last fetch brought no job.
    block: u32,
    /// The time before which no reservation succeeds.
    refused_until: Option<Instant>,
    clock: Option<Clock>,
    known: Option<Version<RateRecord>>,
}

/// The storage's time at an instant. The true time may be later: by the way of the answer, and by what the
/// storage rounds off.
#[derive(Debug, Clone, Copy)]
struct Clock {
    at: Instant,
    micros: u64,
}

impl Clock {
    /// Returns the storage's time. It goes a thousandth too slowly, so that clocks that drift apart do not make
    /// it run ahead.
    fn time(self, instant: Instant) -> u64 {
        let passed = micros(instant.saturating_duration_since(self.at));
        self.micros.saturating_add(passed - passed / 1_000)
    }

    fn instant(self, time: u64) -> Instant {
        self.at + Duration::from_micros(time.saturating_sub(self.micros))
    }

    /// Takes over the time of an answer. Returns whether the time that was expected was right.
    fn set(clock: &mut Option<Self>, answer: u64) -> bool {
        let at = Instant::now();
        let expected = clock.map(|clock| clock.time(at));
        let is_right = expected.is_some_and(|expected| expected.abs_diff(answer) <= MAX_ERROR);
        // Answers are late: the latest time that one has shown is the best.
        let micros = expected.filter(|_| is_right).map_or(answer, |expected| expected.max(answer));
        *clock = Some(Self { at, micros });
        is_right
    }
}

/// The next step of a caller that wants to begin a job.
#[derive(Debug)]
pub(super) enum Turn {
    /// A job may begin at this time.
    At(Instant),
    /// A message may be fetched, and its job reserves a time before it begins.
    Unreserved,
    /// So many times must be reserved first.
    Reserve(u32),
    /// No job can begin for so long.
    Wait(Duration),
}

impl SharedRate {
    pub(super) fn new(
        blobs: &Arc<dyn BlobStore>,
        runtime: &Runtime,
        name: &str,
        rate: Rate,
    ) -> Result<Self, NameError> {
        let name = BlobName::new(ContainerName::new(CONTAINER)?, name)?;
        Ok(Self {
            record: JsonBlob::new(blobs, runtime, name, MAX_RECORD_BYTES),
            rate,
            state: Mutex::default(),
            reserving: tokio::sync::Mutex::default(),
        })
    }

    pub(super) fn with_rate(&self, rate: Rate) -> Self {
        let record = self.record.clone();
        Self { record, rate, state: Mutex::default(), reserving: tokio::sync::Mutex::default() }
    }

    pub(super) fn name(&self) -> &str {
        self.record.name().name()
    }

    /// Returns the next step. A time after `latest` stays with the process. The caller that gets a time
    /// [gives it back](Self::give_back) if it begins no job.
    pub(super) fn turn(&self, latest: Instant) -> Turn {
        let now = Instant::now();
        let mut state = lock(&self.state);
        while state.times.front().is_some_and(|time| *time + GRACE <= now) {
            state.times.pop_front();
        }
        if let Some(time) = state.times.front().copied() {
            if time > latest {
                return Turn::Wait(time.saturating_duration_since(now));
            }
            state.times.pop_front();
            return Turn::At(time);
        }
        match state.refused_until.filter(|until| *until > now) {
            Some(until) => Turn::Wait(until - now),
            None if state.block == 0 => Turn::Unreserved,
            None => Turn::Reserve(state.block),
        }
    }

    /// Takes a time for a job that was fetched without one, and returns how long it must wait. Returns
    /// `Err(wait)` instead if it would have to wait for longer than `max_wait`.
    pub(super) async fn begin(&self, max_wait: Duration) -> Result<Duration, Duration> {
        let latest = Instant::now() + max_wait;
        loop {
            let reserving = self.reserving.lock().await;
            match self.turn(latest) {
                Turn::At(time) => {
                    self.spent();
                    return Ok(time.saturating_duration_since(Instant::now()));
                }
                Turn::Wait(wait) if Instant::now() + wait > latest => return Err(wait),
                Turn::Wait(wait) => {
                    drop(reserving);
                    sleep(wait).await;
                }
                Turn::Unreserved => self.reserve_locked(1).await,
                Turn::Reserve(wanted) => self.reserve_locked(wanted).await,
            }
        }
    }

    /// Records that a job begins. Returns false if its time has long passed.
    pub(super) fn spend(&self, time: Instant) -> bool {
        let is_valid = time + GRACE > Instant::now();
        if is_valid {
            self.spent();
        }
        is_valid
    }

    fn spent(&self) {
        let mut state = lock(&self.state);
        state.block = state.block.saturating_mul(2).clamp(1, self.rate.max_block());
    }

    /// Takes back the turn of a fetch that brought no job.
    pub(super) fn give_back(&self, time: Option<Instant>) {
        let mut state = lock(&self.state);
        state.block = 0;
        if let Some(time) = time {
            let place = state.times.partition_point(|other| *other < time);
            state.times.insert(place, time);
        }
    }

    /// Reserves up to `wanted` times. If none can be reserved, the next turn is to wait.
    pub(super) async fn reserve(&self, wanted: u32) {
        let _reserving = self.reserving.lock().await;
        // Another caller may have reserved meanwhile.
        if lock(&self.state).times.is_empty() {
            self.reserve_locked(wanted).await;
        }
    }

    async fn reserve_locked(&self, wanted: u32) {
        let wait = match timeout(MAX_RESERVING_TIME, self.change_record(wanted)).await {
            Ok(Ok(Ok(()))) => return,
            Ok(Ok(Err(wait))) => wait + self.record.runtime().jitter(MAX_BLOCK_TIME / 5, 0.0..=1.0),
            Ok(Err(error)) => self.failed(&error),
            Err(_) => {
                let name = self.record.name();
                self.failed(&StoreError::new(StoreErrorKind::Timeout, "reserve a part of a rate", name))
            }
        };
        lock(&self.state).refused_until = Some(Instant::now() + wait.min(MAX_WAIT));
    }

    fn failed(&self, error: &StoreError) -> Duration {
        crate::log::warn!(rate = %self.record.name(), error = %chain(error), "the record of a rate cannot be changed: jobs with this rate wait");
        lock(&self.state).known = None;
        RETRY_DELAY
    }

    async fn change_record(&self, wanted: u32) -> Result<Result<(), Duration>, StoreError> {
        let (known, clock) = {
            let mut state = lock(&self.state);
            (state.known.take().map_or(Known::Nothing, Known::Version), state.clock)
        };
        let changed = self.record.change(known, |record| {
            let Some(clock) = clock else {
                // The answer has the storage's time.
                return Edit::Write(record.unwrap_or(RateRecord { full_at: 0, changed: 0 }), Ok(Vec::new()));
            };
            match self.rate.reserve(record, clock.time(Instant::now()), wanted) {
                Ok((times, record)) => Edit::Write(record, Ok(times)),
                Err(wait) => Edit::Keep(Err(wait)),
            }
        });
        let changed = changed.await?;
        let mut state = lock(&self.state);
        let reserved = changed.result.map(|times| {
            // If another write came after one whose answer was lost, the time is that of the other.
            let written = changed.version.as_ref().filter(|_| changed.is_latest);
            let is_right =
                written.is_some_and(|version| Clock::set(&mut state.clock, since_1970(version.modified)));
            // By a wrong time, others may have reserved the same ones.
            if is_right && let Some(clock) = state.clock {
                state.times.extend(times.into_iter().map(|time| clock.instant(time)));
            }
            state.refused_until = None;
        });
        state.known = changed.version;
        Ok(reserved)
    }
}

impl fmt::Debug for SharedRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedRate").field("name", self.record.name()).finish_non_exhaustive()
    }
}

fn since_1970(time: SystemTime) -> u64 {
    micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
