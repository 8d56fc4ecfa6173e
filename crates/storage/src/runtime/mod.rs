//! The clock, the random numbers and the tasks of a process, as one handle.
//!
//! Every storage has a [`Runtime`] (`Storage::runtime` returns it). Queues, workers, leaders and batches take
//! the time, their ids and jitter, and their tasks from it. Production uses the default, which asks the
//! operating system and tokio. A simulation gives each of its processes a runtime with a clock that may be
//! wrong, a seed, and a gate that stops the tasks of the process.

mod random;
mod tasks;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::clock::{Clock, SystemClock, TokioClock};

pub use tasks::TaskGate;

/// The source of time and random numbers, and the place where tasks start. Cheap to clone; all clones share
/// the clock and the seed.
///
/// ```
/// use jobqueue::{Backoff, Runtime};
///
/// let delay = || Backoff::DEFAULT.delay(5, &Runtime::new().with_seed(42));
/// assert_eq!(delay(), delay());
/// ```
#[derive(Clone, Default)]
pub struct Runtime(Option<Arc<Custom>>);

/// The parts of a runtime that differ from the default.
#[derive(Clone)]
struct Custom {
    clock: Arc<dyn Clock>,
    /// The generator of all random numbers; `None` for the thread's generator.
    seeded: Option<Arc<Mutex<StdRng>>>,
    gate: Option<Arc<dyn TaskGate>>,
    starts_threads: bool,
}

impl Default for Custom {
    fn default() -> Self {
        Self { clock: Arc::new(SystemClock), seeded: None, gate: None, starts_threads: true }
    }
}

impl Runtime {
    /// Returns the runtime of production: the clock of the operating system, the thread's generator of random
    /// numbers, and tasks of tokio.
    pub const fn new() -> Self {
        Self(None)
    }

    /// Returns a runtime for tests on paused time: it follows tokio's clock from the present time, and starts
    /// all tasks on the caller's tokio runtime, not on threads. A test that depends on the time of day uses
    /// [`virtual_time`](Self::virtual_time).
    pub fn paused() -> Self {
        Self::virtual_time(Arc::new(TokioClock::new()))
    }

    /// Returns a runtime for tests on paused time that takes the time from `clock`, such as a [`TokioClock`]
    /// that starts at a chosen moment, and starts no threads, as [`paused`](Self::paused).
    pub fn virtual_time(clock: Arc<dyn Clock>) -> Self {
        Self::new().with_clock(clock).without_threads()
    }

    /// Takes the time from `clock`.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        self.with(|custom| custom.clock = clock)
    }

    /// Takes all random numbers and ids from a generator with this seed, and the time within ids from the
    /// clock. A run on one thread is then repeatable. The numbers can be guessed, so do not use it in
    /// production.
    #[must_use]
    pub fn with_seed(self, seed: u64) -> Self {
        self.with(|custom| custom.seeded = Some(Arc::new(Mutex::new(StdRng::seed_from_u64(seed)))))
    }

    /// Starts every task behind `gate`, which can stop it between two polls, and starts no threads.
    #[must_use]
    pub fn with_task_gate(self, gate: Arc<dyn TaskGate>) -> Self {
        self.with(|custom| custom.gate = Some(gate)).without_threads()
    }

    /// Starts all tasks on the tokio runtime of the caller. By default leases are renewed on a separate
    /// thread of the library, which no handler can block, but which does not see the paused time of a test.
    #[must_use]
    fn without_threads(self) -> Self {
        self.with(|custom| custom.starts_threads = false)
    }

    fn with(self, change: impl FnOnce(&mut Custom)) -> Self {
        let mut custom = self.0.unwrap_or_default();
        change(Arc::make_mut(&mut custom));
        Self(Some(custom))
    }

    /// Returns the time now.
    #[inline]
    pub fn now(&self) -> SystemTime {
        self.clock().now()
    }

    /// Returns the clock.
    #[inline]
    pub fn clock(&self) -> &dyn Clock {
        match &self.0 {
            None => &SystemClock,
            Some(custom) => &*custom.clock,
        }
    }

    /// Returns whether the library starts separate threads for some tasks, such as the renewal of leases.
    /// Runtimes of [`paused`](Self::paused), [`virtual_time`](Self::virtual_time) and
    /// [`with_task_gate`](Self::with_task_gate) do not.
    pub fn starts_threads(&self) -> bool {
        self.0.as_ref().is_none_or(|custom| custom.starts_threads)
    }
}

impl fmt::Debug for Runtime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(custom) = &self.0 else { return f.write_str("Runtime") };
        f.debug_struct("Runtime")
            .field("clock", &custom.clock)
            .field("seeded", &custom.seeded.is_some())
            .field("gate", &custom.gate)
            .field("starts_threads", &custom.starts_threads)
            .finish()
    }
}
