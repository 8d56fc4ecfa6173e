//! The wall clock, injected so that tests can set it.
//!
//! Wall-clock time is used only for instants that are stored or shown. Deadlines inside a process are
//! monotonic (`tokio::time::Instant`).

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use crate::sync::lock;

/// A time longer than any process runs, for "no time limit". Instants and sums with it do not overflow.
pub const WITHOUT_END: Duration = Duration::from_secs(30 * 366 * 86_400);

/// A source of the wall-clock time. An application implements it to run jobs at a time other than the
/// system's.
///
/// ```
/// use jobqueue::clock::{Clock, SystemClock};
/// use jobqueue::{Runtime, memory};
/// use std::sync::Arc;
/// use std::time::{Duration, SystemTime};
///
/// /// A clock that is one day ahead.
/// #[derive(Debug)]
/// struct Tomorrow;
///
/// impl Clock for Tomorrow {
///     fn now(&self) -> SystemTime {
///         SystemClock.now() + Duration::from_secs(86_400)
///     }
/// }
///
/// let storage = memory::open_on(Runtime::new().with_clock(Arc::new(Tomorrow)));
/// # drop(storage);
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the time now.
    fn now(&self) -> SystemTime;

    /// Returns whether the time of this clock can be wrong, in which case a step ahead is accepted only after
    /// a minute. The default is `false`, which suits the clocks of tests.
    fn may_be_set_wrong(&self) -> bool {
        false
    }
}

/// The clock of the operating system.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }

    fn may_be_set_wrong(&self) -> bool {
        true
    }
}

/// A clock that moves only when a test moves it.
///
/// ```
/// use jobqueue::clock::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(clock.now(), before + Duration::from_secs(60));
/// ```
#[derive(Debug)]
pub struct ManualClock(Mutex<SystemTime>);

impl ManualClock {
    /// Returns a clock that stands at 2026-01-01T00:00:00Z.
    pub fn new() -> Self {
        Self::at(SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600))
    }

    /// Returns a clock that stands at `time`.
    pub fn at(time: SystemTime) -> Self {
        Self(Mutex::new(time))
    }

    /// Moves the clock forwards. If the sum is not a valid time, the clock does not move.
    pub fn advance(&self, by: Duration) {
        let mut time = lock(&self.0);
        *time = time.checked_add(by).unwrap_or(*time);
    }

    /// Sets the clock, possibly backwards, as a time service may.
    pub fn set(&self, time: SystemTime) {
        *lock(&self.0) = time;
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> SystemTime {
        *lock(&self.0)
    }
}

/// Wall-clock time that advances with tokio's clock, and is paused and advanced together with a test's
/// runtime.
///
/// A paused runtime is visible only on its own threads; a thread of another runtime sees real time. A test
/// that uses both should give the storage a [`ManualClock`] instead.
#[derive(Debug, Clone)]
pub struct TokioClock {
    wall: SystemTime,
    start: Instant,
}

impl TokioClock {
    /// Returns a clock that shows the system's time now and follows tokio's clock from here.
    pub fn new() -> Self {
        Self::at(SystemTime::now())
    }

    /// Returns a clock that shows `moment` now and follows tokio's clock from here, for tests that depend on
    /// the time of day, such as tests of schedules.
    pub fn at(moment: SystemTime) -> Self {
        Self { wall: moment, start: Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> SystemTime {
        self.wall + Instant::now().saturating_duration_since(self.start)
    }
}
