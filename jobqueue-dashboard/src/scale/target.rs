//! The number of workers that a queue needs.

use std::time::Duration;

use crate::snapshot::{Demand, QueueFigures, Snapshot};

/// The slots of a worker that nobody has seen yet: the concurrency of a worker unless configured otherwise. One worker is started
/// by it; the worker's record then tells the real number.
pub const DEFAULT_SLOTS: f64 = 64.0;

/// The aim of an autoscaler.
///
/// By slots, every job that waits or runs has a slot:
///
/// ```text
/// desired = ⌈ (waiting + running) ÷ slots of a worker ⌉
/// ```
///
/// By a target delay, what waits now has started within the delay, and what runs keeps its slot:
///
/// ```text
/// desired = ⌈ (waiting × mean run time ÷ target delay + running) ÷ slots of a worker ⌉
/// ```
///
/// Each is the greatest value over the time for which demand is [held](crate::snapshot::Snapshots::hold). Jobs on draining workers do not
/// count, and those of a paused queue count while they run. The autoscaler bounds the result.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Target {
    delay: Option<Duration>,
    slots_per_worker: Option<f64>,
}

/// The number of workers that a queue needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Desired {
    /// The number by slots.
    pub by_slots: u64,
    /// The number by the target delay; `None` without one.
    pub by_delay: Option<u64>,
}

impl Target {
    /// Returns the default: by slots, with as many for each worker as the present workers have.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the time within which a job that waits shall start.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.delay = Some(delay).filter(|delay| !delay.is_zero());
        self
    }

    /// Sets the number of slots of a worker for this queue. By default it is the mean of the present workers, or of those that were
    /// here before, or [`DEFAULT_SLOTS`]. A worker whose slots are shared by several queues gives each only a part: set it then.
    #[must_use]
    pub fn slots_per_worker(mut self, slots: f64) -> Self {
        self.slots_per_worker = Some(slots).filter(|slots| *slots >= 1.0);
        self
    }

    /// Returns the number of workers that a queue needs; `None` if the snapshot does not have it.
    pub fn desired(&self, snapshot: &Snapshot, queue: &str) -> Option<Desired> {
        let figures = snapshot.queues.get(queue)?;
        let demands = snapshot.demands.get(queue)?;
        let most = |of: &dyn Fn(&Demand) -> u64| demands.iter().map(of).max().unwrap_or_default();
        let slots = self.slots(figures);
        let by_slots = |demand: &Demand| workers((demand.waiting + demand.running) as f64, slots);
        let by_delay = |delay: Duration| {
            // Jobs whose run time is not known take as long as the delay: each needs a slot.
            let each = figures.run_seconds.map_or(1.0, |run| run / delay.as_secs_f64());
            most(&|demand| {
                let least = u64::from(demand.waiting + demand.running > 0);
                workers(demand.waiting as f64 * each + demand.running as f64, slots).max(least)
            })
        };
        Some(Desired { by_slots: most(&by_slots), by_delay: self.delay.map(by_delay) })
    }

    fn slots(&self, figures: &QueueFigures) -> f64 {
        self.slots_per_worker.or(figures.slots_per_worker).unwrap_or(DEFAULT_SLOTS).max(1.0)
    }
}

impl Desired {
    /// Returns the number by the target delay if there is one, and by slots otherwise.
    pub fn workers(&self) -> u64 {
        self.by_delay.unwrap_or(self.by_slots)
    }
}

fn workers(jobs: f64, slots: f64) -> u64 {
    // A float converts by saturation.
    (jobs / slots).ceil() as u64
}
