//! The time of the file: milliseconds since 1970 that never run backwards.
//!
//! Leases and delays are compared with the wall clock, because several processes, and successive runs of a
//! process, share them. If the wall clock steps back below a time that this process or the file has seen, the
//! difference is added from then on. So time does not repeat, which would deliver leased messages twice, and
//! does not stand still until the wall clock has caught up, which would freeze delayed messages. A later step
//! ahead pays the difference back; the rest is made up by running slower.
//!
//! A step of the wall clock ahead by more than ten seconds is ignored for a minute, in which time follows the
//! monotonic clock, so a clock that is briefly wrong expires no message. When a step is accepted, leases are
//! moved with it, because their owners count durations; delays and times to live follow the wall clock. A
//! process that has just started has no earlier time to compare with, and believes its clock at once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant, SystemTime};

use jobqueue_storage::log::{debug, warn};
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::sync::lock;

/// The `visible_at` of a leased message in the index of times: after every real time, and stored in as many
/// bytes as a current time.
pub(super) const LEASED_TIME: i64 = (1 << 47) - 1;

/// The last millisecond before [`LEASED_TIME`], in the year 6429. No instant is later, so no sum overflows.
pub(super) const LAST_INSTANT: i64 = LEASED_TIME - 1;

#[derive(Debug)]
pub(super) struct StoreClock {
    wall: Runtime,
    state: Mutex<ClockState>,
}

#[derive(Debug, Default)]
struct ClockState {
    /// The milliseconds by which this clock is ahead of the wall clock.
    ahead: i64,
    /// The time up to which the slower pace has already reduced `ahead`.
    slowed: Option<Instant>,
    last: i64,
    /// The time at which `last` was returned; `None` for clocks that cannot be wrong.
    at: Option<Instant>,
    /// The time since which the wall clock has shown more time than can have passed.
    doubted_since: Option<Instant>,
    /// The sum of the accepted steps ahead, in milliseconds. Leases must be moved by as much.
    leap: i64,
    /// The part of this sum by which leases were moved.
    moved: i64,
}

/// The largest forward step that is accepted at once, in milliseconds.
const MAX_STEP: i64 = 10_000;
/// The time after which a larger step is accepted.
const DOUBT_TIME: Duration = Duration::from_secs(60);
/// The smallest step ahead that pays back an earlier step back, in milliseconds. A smaller step may be
/// rounding.
const MIN_PAYBACK_STEP: i64 = 100;
/// The smallest step ahead that moves leases, in milliseconds: less than the time between the renewal of a
/// four-second lease and its end. A smaller step may be the time between the readings of the two clocks, and
/// moving leases reads all of them.
const MIN_LEAP: i64 = 1_000;
/// The time in which this clock falls back by a millisecond while it is ahead of the wall clock. Leases then
/// last one percent longer, never shorter.
const SLOW_DOWN_PERIOD: Duration = Duration::from_millis(100);

impl ClockState {
    /// Returns the time for the wall-clock time `wall`. `present` is the monotonic time; `None` for clocks
    /// that cannot be wrong.
    fn now(&mut self, wall: i64, seen: i64, present: Option<Instant>) -> i64 {
        let floor = seen.max(self.last).min(LAST_INSTANT);
        let watched = self.at.zip(present).map(|(at, present)| {
            let passed = present.saturating_duration_since(at).as_millis();
            let expected = self.last.saturating_add(i64::try_from(passed).unwrap_or(LAST_INSTANT));
            (expected.max(floor), present)
        });
        if let Some((expected, present)) = watched {
            let step = wall + self.ahead - expected;
            self.pay_back(if step >= MIN_PAYBACK_STEP { step } else { 0 }, present);
        }
        if wall + self.ahead < floor {
            debug!(by_ms = floor - wall - self.ahead, "the wall clock stepped back");
            self.ahead = floor - wall;
        }
        let time = (wall + self.ahead).min(LAST_INSTANT);
        let believed = watched.map_or(time, |(expected, present)| self.believe(time, expected, present));
        self.last = believed.max(floor);
        self.at = present;
        self.last
    }

    /// Reduces `ahead` by a step of the wall clock, and by the amount due to the slower pace.
    fn pay_back(&mut self, step: i64, present: Instant) {
        let since = self.slowed.filter(|_| self.ahead > 0).unwrap_or(present);
        let slower = present.saturating_duration_since(since).as_millis() / SLOW_DOWN_PERIOD.as_millis();
        let slower = u32::try_from(slower).unwrap_or(u32::MAX);
        self.slowed = Some(since + SLOW_DOWN_PERIOD * slower);
        self.ahead -= step.saturating_add(i64::from(slower)).min(self.ahead);
    }

    /// Returns the wall clock's time, limited to accepted steps.
    fn believe(&mut self, wall: i64, expected: i64, present: Instant) -> i64 {
        if wall <= expected.saturating_add(MAX_STEP) {
            self.doubted_since = None;
            if wall - expected >= MIN_LEAP {
                self.leap += wall - expected;
            }
            return wall;
        }
        let since = *self.doubted_since.get_or_insert_with(|| {
            warn!(
                ahead_ms = wall - expected,
                "the wall clock stepped ahead; the new time is accepted after a minute"
            );
            present
        });
        if present.saturating_duration_since(since) < DOUBT_TIME {
            return expected;
        }
        self.doubted_since = None;
        self.leap += wall - expected;
        wall
    }
}

/// The clocks of the files that this process has open.
static OPEN_CLOCKS: Mutex<BTreeMap<PathBuf, Weak<StoreClock>>> = Mutex::new(BTreeMap::new());

impl StoreClock {
    pub(super) fn new(wall: Runtime) -> Self {
        Self { wall, state: Mutex::default() }
    }

    /// Returns the clock of an open file, by its canonical path. All handles and connections of the process
    /// share it, because a new clock has no earlier time by which to doubt the wall clock.
    pub(super) fn shared(wall: Runtime, file: &Path) -> Arc<Self> {
        let mut open = lock(&OPEN_CLOCKS);
        if let Some(clock) = open.get(file).and_then(Weak::upgrade) {
            return clock;
        }
        let clock = Arc::new(Self::new(wall));
        open.retain(|_, clock| clock.strong_count() > 0);
        open.insert(file.to_owned(), Arc::downgrade(&clock));
        clock
    }

    /// Returns the clock that this process uses for a file, or a new clock if the file is not open.
    pub(super) fn of(file: Option<&str>) -> Arc<Self> {
        let file = file.and_then(|file| std::fs::canonicalize(file).ok());
        let open = file.and_then(|file| lock(&OPEN_CLOCKS).get(&file)?.upgrade());
        open.unwrap_or_else(|| Arc::new(Self::new(Runtime::new())))
    }

    #[cfg(test)]
    pub(super) fn after_a_leap(wall: Runtime, leap: i64) -> Self {
        Self { wall, state: Mutex::new(ClockState { leap, ..ClockState::default() }) }
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.wall
    }

    /// Returns whether the wall clock has stepped back, so that this clock is ahead of the clocks of later
    /// processes.
    pub(super) fn is_ahead(&self) -> bool {
        lock(&self.state).ahead > 0
    }

    /// Returns the time now, which is never before `seen`, the newest time in the file.
    pub(super) fn now(&self, seen: i64) -> i64 {
        self.now_and_leap(seen, &mut 0).0
    }

    /// Returns the time now. `moved` is the sum of the leaps for which a transaction has moved the leases; it
    /// becomes the sum of those for which any handle has. Returns by how many milliseconds more time has leapt
    /// ahead: the leases must be moved by as much.
    pub(super) fn now_and_leap(&self, seen: i64, moved: &mut i64) -> (i64, i64) {
        // Both clocks are read under the lock. The wall clock of a thread that has waited in between would
        // seem to have stepped back.
        let mut state = lock(&self.state);
        let wall = to_millis(self.wall.now());
        let present = self.wall.clock().may_be_set_wrong().then(Instant::now);
        let now = state.now(wall, seen, present);
        *moved = state.moved.max(*moved);
        (now, state.leap - *moved)
    }

    /// Records after the commit that leases were moved for all leaps up to the sum `moved`, as
    /// [`now_and_leap`](Self::now_and_leap) counts them. Two handles may do so for the same leap.
    pub(super) fn leases_were_moved(&self, moved: i64) {
        let mut state = lock(&self.state);
        state.moved = state.moved.max(moved);
    }
}

pub(super) fn to_millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(LAST_INSTANT).min(LAST_INSTANT)
}

pub(super) fn to_instant(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + to_duration(millis)
}

/// Returns a span of milliseconds as a duration; zero for a negative span.
pub(super) fn to_duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Returns the instant `wait` after `now`, rounded up so that nothing happens early.
pub(super) fn after(now: i64, wait: Duration) -> i64 {
    let millis = wait.as_nanos().div_ceil(1_000_000);
    now.saturating_add(i64::try_from(millis).unwrap_or(LAST_INSTANT)).min(LAST_INSTANT)
}

#[cfg(test)]
mod tests;
