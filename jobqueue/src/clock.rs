//! The wall clock, injected so that tests can set it.
//!
//! Wall-clock time is used only for instants that are stored or shown. Deadlines inside a process are
//! monotonic (`tokio::time::Instant`).

use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use jiff::Timestamp;
use jiff::fmt::temporal::DateTimePrinter;

use crate::sync::lock;

/// Three digits after the point, always.
const MILLISECONDS: DateTimePrinter = DateTimePrinter::new().precision(Some(3));

/// Returns the text of a moment in UTC with milliseconds, as RFC 3339 writes it; `None` outside the years that it can write.
pub(crate) fn rfc3339(time: SystemTime) -> Option<String> {
    Some(MILLISECONDS.timestamp_to_string(&Timestamp::try_from(time).ok()?))
}

/// Returns the moment that a text of RFC 3339 tells.
pub(crate) fn parse_rfc3339(text: &str) -> Option<SystemTime> {
    text.parse::<Timestamp>().ok().map(SystemTime::from)
}

/// A time longer than any process runs, for a caller that means "without end". Instants and sums with it do not
/// overflow.
pub(crate) const WITHOUT_END: Duration = Duration::from_secs(30 * 366 * 86_400);

/// A source of the wall-clock time. An application implements it to give jobs another time than the system's.
///
/// ```
/// use jobqueue::clock::{Clock, SystemClock};
/// use jobqueue::memory;
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
/// let storage = memory::open_with_clock(Arc::new(Tomorrow));
/// # drop(storage);
/// ```
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the time now.
    fn now(&self) -> SystemTime;

    /// Returns whether somebody may set this clock wrong for a moment, so that a step ahead is believed only after a
    /// minute. The default is `false`, which suits the clocks of tests.
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

    /// Sets the clock, also backwards, as a time service may.
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
