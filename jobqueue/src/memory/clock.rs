//! Clocks of the memory storage.

use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use tokio::time::Instant;

use crate::clock::Clock;
use crate::sync::lock;

/// Wall-clock time that advances with tokio's clock: paused and advanced together with a test's runtime.
///
/// A runtime's pause is known only on its own threads. A thread of another runtime sees real time; a test that uses
/// both should give the storage a [`ManualClock`](crate::clock::ManualClock) instead.
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

    /// Returns a clock that shows `moment` now and follows tokio's clock from here: for tests that depend on the time
    /// of day, such as those of schedules. Give the same clock to [`open_with_clock`](super::open_with_clock) and to
    /// [`virtual_time`](crate::WorkerBuilder::virtual_time).
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

/// A clock that never goes backwards: after a step back it stands still until the former time is reached again.
#[derive(Debug)]
pub(super) struct Steady {
    clock: Arc<dyn Clock>,
    latest: Mutex<SystemTime>,
}

impl Steady {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        let latest = Mutex::new(clock.now());
        Self { clock, latest }
    }

    pub(super) fn now(&self) -> SystemTime {
        let mut latest = lock(&self.latest);
        *latest = self.clock.now().max(*latest);
        *latest
    }
}
