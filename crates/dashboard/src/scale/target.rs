//! The number of workers that a queue needs.

use std::time::Duration;

use crate::snapshot::{Snapshot, WorkerFigures};

/// The number of slots assumed for the first worker: the default concurrency. Once a worker runs, its record has the
/// real number.
pub const DEFAULT_SLOTS: f64 = 64.0;

/// The aim of an autoscaler.
///
/// By slots, every job that waits or runs has a slot:
///
/// ```text
/// load = (waiting + running) ÷ slots of a worker
/// ```
///
/// By a target delay, all waiting jobs start within the delay, and running jobs keep their slots:
///
/// ```text
/// load = (waiting × mean run time ÷ target delay + running) ÷ slots of a worker
/// ```
///
/// The number of workers is the load, rounded up. Each is the greatest value of the [last 30 seconds](crate::snapshot::Snapshot::demands).
/// Jobs on draining workers do not count, and those of a paused queue count while they run. The autoscaler bounds the result.
///
/// Give an autoscaler with a tolerance, as that of Kubernetes has, the load: it then keeps 5 workers at a load of 5.2. The rounded number
/// would change between 5 and 6 with every job.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Target {
    delay: Option<Duration>,
    slots_per_worker: Option<f64>,
}

/// The work of a queue, in workers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Desired {
    /// The load by slots.
    pub by_slots: f64,
    /// The load by the target delay; `None` without one.
    pub by_delay: Option<f64>,
}

impl Target {
    /// Returns the default: by slots, with as many for each worker as the present workers have.
    pub fn new() -> Self {
        Self::default()
    }

    jobqueue_storage::setters! {
        /// Sets the time within which a job that waits shall start. Zero sets none. Jobs whose run time is not known yet are counted as
        /// if each took the whole delay.
        delay(delay: Duration) = Some(delay).filter(|delay| !delay.is_zero());

        /// Sets the number of slots of a worker for this queue. By default it is the mean of the present workers, or of those that were
        /// here before, or [`DEFAULT_SLOTS`]. A worker whose slots are shared by several queues gives each only a part: set it then.
        slots_per_worker(slots: f64) => slots_per_worker = Some(slots).filter(|slots| *slots >= 1.0);
    }

    /// Returns the work of a queue in workers; `None` if the snapshot lacks the queue, because it does not exist or
    /// could not be read (see [`Snapshot::unreadable`]), or if the records of workers could not.
    pub fn desired(&self, snapshot: &Snapshot, queue: &str) -> Option<Desired> {
        let figures = snapshot.queues.get(queue)?;
        let demands = snapshot.demands.get(queue)?;
        let slots = self.slots(figures.workers.as_ref()?);
        let most = |each: f64| {
            let loads = demands.iter().map(|jobs| (jobs.waiting as f64 * each + jobs.running as f64) / slots);
            loads.fold(0.0, f64::max)
        };
        // Jobs whose run time is not known take as long as the delay: each needs a slot.
        let by_delay =
            self.delay.map(|delay| most(figures.run_seconds.map_or(1.0, |run| run / delay.as_secs_f64())));
        Some(Desired { by_slots: most(1.0), by_delay })
    }

    fn slots(&self, workers: &WorkerFigures) -> f64 {
        self.slots_per_worker.or(workers.slots_per_worker).unwrap_or(DEFAULT_SLOTS).max(1.0)
    }
}

impl Desired {
    /// Returns the load by the target delay if there is one, and by slots otherwise.
    pub fn load(&self) -> f64 {
        self.by_delay.unwrap_or(self.by_slots)
    }

    /// Returns the number of workers for the [load](Self::load).
    pub fn workers(&self) -> u64 {
        workers(self.load())
    }
}

pub(super) fn workers(load: f64) -> u64 {
    // Sums of fractions are a little above what they should be. A float converts by saturation.
    (load - 1e-9).ceil().max(0.0) as u64
}
