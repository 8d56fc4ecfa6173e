//! The number of workers that a queue needs.

use std::time::Duration;

use crate::snapshot::{Snapshot, WorkerFigures};

/// The number of slots that is assumed for the first worker: the default concurrency. Once a worker runs, its
/// record has the actual number.
pub const DEFAULT_SLOTS: f64 = 64.0;

/// The goal of an autoscaler.
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
/// The number of workers is the load, rounded up. The load is the maximum over the [last 30
/// seconds](crate::snapshot::Snapshot::demands). Jobs on draining workers do not count. Jobs of a paused
/// queue count only while they run. The autoscaler bounds the result.
///
/// An autoscaler with a tolerance, such as the one of Kubernetes, should read the load: it then keeps 5
/// workers at a load of 5.2. The rounded number would change between 5 and 6 with every job.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Target {
    delay: Option<Duration>,
    slots_per_worker: Option<f64>,
}

/// The load of a queue, in workers.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Desired {
    /// The load by slots.
    pub by_slots: f64,
    /// The load by the target delay; `None` without one.
    pub by_delay: Option<f64>,
}

impl Target {
    /// Returns the default target: by slots, with the mean number of slots of the present workers.
    pub fn new() -> Self {
        Self::default()
    }

    jobqueue_storage::setters! {
        /// Sets the time within which a waiting job should start. Zero removes the target delay. A job whose
        /// run time is not known yet counts as if it took the whole delay.
        delay(delay: Duration) = Some(delay).filter(|delay| !delay.is_zero());

        /// Sets the number of slots that a worker has for this queue. The default is the mean of the present
        /// workers, or else of the last workers that were present, or else [`DEFAULT_SLOTS`]. Set this number
        /// if several queues share the slots of a worker, so that each queue gets only a part of them.
        slots_per_worker(slots: f64) => slots_per_worker = Some(slots).filter(|slots| *slots >= 1.0);
    }

    /// Returns the load of a queue in workers; `None` if the snapshot lacks the queue, because the queue does
    /// not exist or could not be read (see [`Snapshot::unreadable`]), or if the records of workers could not
    /// be read.
    pub fn desired(&self, snapshot: &Snapshot, queue: &str) -> Option<Desired> {
        let figures = snapshot.queues.get(queue)?;
        let demands = snapshot.demands.get(queue)?;
        let slots = self.slots(figures.workers.as_ref()?);
        let max_load = |per_job: f64| {
            let loads =
                demands.iter().map(|jobs| (jobs.waiting as f64 * per_job + jobs.running as f64) / slots);
            loads.fold(0.0, f64::max)
        };
        // Jobs without a known run time count as if they took the whole delay: each needs a slot.
        let by_delay = self
            .delay
            .map(|delay| max_load(figures.run_seconds.map_or(1.0, |run| run / delay.as_secs_f64())));
        Some(Desired { by_slots: max_load(1.0), by_delay })
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
    // Rounding errors may lift a whole number slightly. The cast saturates.
    (load - 1e-9).ceil().max(0.0) as u64
}
