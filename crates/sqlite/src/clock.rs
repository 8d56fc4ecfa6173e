//! The time of the file: milliseconds since 1970 that never run backwards.
//!
//! Leases and delays are compared with the wall clock, since several processes, and successive runs of one, share them.
//! When the wall clock steps back below the time that this process or the file has seen, the difference is added from
//! then on. So time does not repeat, which would deliver leased messages twice. Nor does it stand still until the wall
//! clock has caught up, which would freeze delayed messages.
//!
//! A step of the wall clock ahead by more than ten seconds is ignored for a minute, in which time follows the monotonic
//! clock: a clock that is wrong for a moment expires no message. A process that has just started has nothing to compare
//! with, and believes its clock at once.

use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime};

use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::sync::lock;

/// The end of the year 9999: no instant is later, so no sum overflows.
pub(super) const LAST_INSTANT: i64 = 253_402_300_799_999;

#[derive(Debug)]
pub(super) struct StoreClock {
    wall: Runtime,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The difference by which this clock is ahead of the wall clock, in milliseconds.
    ahead: i64,
    last: i64,
    /// The time at which `last` was returned; `None` for clocks that are not watched.
    at: Option<Instant>,
    /// The time since which the wall clock is ahead of the time that can have passed.
    doubted_since: Option<Instant>,
}

/// The greatest step ahead that is believed at once, in milliseconds.
const STEP: i64 = 10_000;
/// The time for which a greater step is doubted.
const DOUBT: Duration = Duration::from_secs(60);

impl State {
    /// Returns the wall clock's time as far as it is believed. `present` is the monotonic time.
    fn believe(&mut self, wall: i64, present: Instant) -> i64 {
        let Some(at) = self.at else { return wall };
        let passed = i64::try_from(present.saturating_duration_since(at).as_millis()).unwrap_or(LAST_INSTANT);
        let expected = self.last.saturating_add(passed);
        if wall <= expected.saturating_add(STEP) {
            self.doubted_since = None;
            return wall;
        }
        let since = *self.doubted_since.get_or_insert_with(|| {
            tracing::warn!(
                ahead_ms = wall - expected,
                "the wall clock stepped ahead; the new time is accepted after a minute"
            );
            present
        });
        if present.saturating_duration_since(since) < DOUBT {
            return expected;
        }
        self.doubted_since = None;
        wall
    }
}

impl StoreClock {
    pub(super) fn new(wall: Runtime) -> Self {
        Self { wall, state: Mutex::default() }
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.wall
    }

    /// Returns whether the wall clock has stepped back, so that this clock is ahead of the clocks of later processes.
    pub(super) fn is_ahead(&self) -> bool {
        lock(&self.state).ahead > 0
    }

    /// Returns the time now, which is never below `seen`, the newest time in the file.
    pub(super) fn now(&self, seen: i64) -> i64 {
        let mut state = lock(&self.state);
        let wall = to_millis(self.wall.now());
        let floor = seen.max(state.last);
        if wall + state.ahead < floor {
            tracing::debug!(by_ms = floor - wall - state.ahead, "the wall clock stepped back");
            state.ahead = floor - wall;
        }
        let present = Instant::now();
        let ahead = state.ahead;
        state.last = state.believe((wall + ahead).min(LAST_INSTANT), present).max(floor);
        state.at = self.wall.clock().may_be_set_wrong().then_some(present);
        state.last
    }
}

pub(super) fn to_millis(time: SystemTime) -> i64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_millis()).unwrap_or(LAST_INSTANT).min(LAST_INSTANT)
}

pub(super) fn to_instant(millis: i64) -> SystemTime {
    SystemTime::UNIX_EPOCH + to_duration(millis)
}

/// Returns a span of milliseconds as a duration; a negative one is zero.
pub(super) fn to_duration(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

/// Returns the instant `wait` after `now`, rounded up so that nothing happens early.
pub(super) fn after(now: i64, wait: Duration) -> i64 {
    let millis = wait.as_nanos().div_ceil(1_000_000);
    now.saturating_add(i64::try_from(millis).unwrap_or(LAST_INSTANT)).min(LAST_INSTANT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    use jobqueue_storage::clock::{Clock as _, ManualClock};

    #[test]
    fn time_goes_on_when_the_wall_clock_steps_back() {
        let wall = Arc::new(ManualClock::new());
        let clock = StoreClock::new(Runtime::new().with_clock(wall.clone()));
        let before = clock.now(0);
        wall.set(wall.now() - Duration::from_secs(3600));
        assert_eq!(clock.now(0), before);
        wall.advance(Duration::from_secs(1));
        assert_eq!(clock.now(0), before + 1000);
    }

    #[test]
    fn time_is_never_below_what_the_file_has_seen() {
        let clock = StoreClock::new(Runtime::new().with_clock(Arc::new(ManualClock::new())));
        let now = clock.now(0);
        assert_eq!(clock.now(now + 5000), now + 5000);
        assert_eq!(clock.now(0), now + 5000);
    }

    #[test]
    fn a_clock_that_is_wrong_for_a_moment_is_not_believed() {
        let start = Instant::now();
        let second = |n: u64| start + Duration::from_secs(n);
        let mut state = State { last: 1_000_000, at: Some(start), ..State::default() };
        assert_eq!(state.believe(1_005_000, second(5)), 1_005_000);
        let ahead = 1_000_000 + 3_600_000;
        assert_eq!(state.believe(ahead, second(6)), 1_006_000, "an hour in a second");
        assert_eq!(state.believe(1_007_000, second(7)), 1_007_000, "the clock was set right");
        assert_eq!(state.believe(ahead, second(8)), 1_008_000);
        assert_eq!(state.believe(ahead, second(67)), 1_067_000);
        assert_eq!(state.believe(ahead, second(68)), ahead, "it has stayed so for a minute");
    }

    #[test]
    fn no_wait_overflows() {
        assert_eq!(after(1, Duration::MAX), LAST_INSTANT);
        assert_eq!(after(1, Duration::from_nanos(1)), 2);
    }
}
