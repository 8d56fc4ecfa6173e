//! The figures of one queue, from its overview and the records of workers.

use std::time::Duration;

use jobqueue::storage::StateCounts;
use jobqueue_admin::{QueueOverview, WorkerOverview};
use serde::{Serialize, Serializer};

/// The figures of one queue. The shards of a queue are one queue here.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QueueFigures {
    /// The approximate number of messages, including invisible ones.
    pub length: u64,
    /// The running jobs. The number comes from leases if the storage counts them, and otherwise from the
    /// records of workers; `None` if these are needed and cannot be read.
    pub in_flight: Option<u64>,
    /// The jobs that another worker could start now.
    ///
    /// This is the number of visible messages, if the storage counts them or a peek has shown all of them.
    /// Otherwise it is the length minus the jobs that are known to run, which includes messages whose delay
    /// is not over. Jobs that wait for another job of their key, or for a limit of their kind, are included,
    /// because storages do not distinguish them.
    pub waiting: u64,
    /// The invisible messages that are not known to run: delayed, backing off, just fetched, or fetched by a
    /// worker without a record.
    pub hidden: u64,
    /// The seconds since the oldest receivable message became due, or was inserted if the storage does not
    /// show when it became due. On databases, jobs that wait for another job of their key do not count.
    /// `None` if no message can be received, or if jobs [wait](Self::waiting) and the age is unknown.
    #[serde(serialize_with = "rounded")]
    pub oldest_seconds: Option<f64>,
    /// The age that metrics report: 0 if no message can be received, and `None` if the age is unknown.
    #[serde(skip)]
    pub(crate) age_seconds: Option<f64>,
    /// The numbers of messages by state; `None` if the storage does not count them.
    #[serde(skip)]
    pub(crate) states: Option<StateCounts>,
    /// The seconds since the oldest message that backs off was sent, or 0 without such a message; `None` if
    /// the storage does not count them.
    #[serde(skip)]
    pub(crate) backing_off_seconds: Option<f64>,
    /// True if each visible message waits for another of its key; `None` if the storage does not count them.
    #[serde(skip)]
    pub(crate) held_up: Option<bool>,
    /// The seconds since the oldest message that waits for another of its key was sent, or 0 without such a
    /// message; `None` if the storage does not count them.
    #[serde(skip)]
    pub(crate) held_up_seconds: Option<f64>,
    /// The approximate number of dead letters; `None` if their queue cannot be read.
    pub dead: Option<u64>,
    /// The jobs completed per second over the last minute, or since the snapshot before if the
    /// [interval](super::Snapshots::every) is longer; `None` before the second snapshot.
    #[serde(serialize_with = "rounded")]
    pub rate: Option<f64>,
    /// The mean run time of handlers over the same time, or over all time if none has ended lately; `None` if
    /// none has ended.
    #[serde(serialize_with = "rounded")]
    pub run_seconds: Option<f64>,
    /// The workers of the queue; `None` if their records cannot be read. JSON has their figures in the same
    /// object.
    #[serde(flatten)]
    pub workers: Option<WorkerFigures>,
    /// True if the queue is paused, so that workers fetch nothing from it.
    pub paused: bool,
}

/// The figures of the workers of one queue, as recorded by the workers.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WorkerFigures {
    /// The present workers that listen to the queue and are not draining.
    pub workers: u64,
    /// The present workers that listen to the queue and are draining.
    pub draining: u64,
    /// The slots that [`workers`](Self::workers) have for the queue, without slots that are reserved for
    /// other queues. The queues of a worker share these slots.
    pub slots: u64,
    /// The number of [`workers`](Self::workers) that have a free slot for another job of the queue.
    #[serde(skip)]
    pub ready_workers: u64,
    /// The mean number of slots of a worker, or the last known mean if no worker is present; `None` if there
    /// never was a worker.
    pub slots_per_worker: Option<f64>,
    /// The workers that fetch nothing from the queue, because all its jobs fail.
    #[serde(skip)]
    pub circuits_open: u64,
    /// The running jobs of all present workers.
    #[serde(skip)]
    running: u64,
    /// The running jobs of present workers that are not draining.
    #[serde(skip)]
    running_on_active: u64,
    /// The jobs that may still run on workers with stale records.
    #[serde(skip)]
    pub(super) lost: u64,
}

/// The work of a queue at one moment, for autoscalers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Demand {
    /// The jobs that could start now; 0 while the queue is paused.
    pub waiting: u64,
    /// The running jobs, without jobs on draining workers, which need no slot of another worker. Jobs of a
    /// worker that has stopped writing its record are included, because that worker may only fail to reach
    /// the storage, but no more of them than messages are leased.
    pub running: u64,
}

impl QueueFigures {
    /// Returns `None` if the queue could not be read. `workers` is `None` if their records could not be read.
    pub(crate) fn of(overview: &QueueOverview, workers: Option<&[WorkerOverview]>) -> Option<Self> {
        let (length, paused) = (overview.length?, overview.paused?);
        let counts = overview.job_counts(workers);
        // Without the records of workers, their running jobs count as waiting or hidden.
        let counted = |age: Option<Duration>| overview.states.map(|_| age.unwrap_or_default().as_secs_f64());
        let waiting = counts.waiting.unwrap_or_else(|| length.max(overview.visible.unwrap_or_default()));
        // Where a peek did not tell waiting jobs from hidden ones, all but the running jobs count as waiting.
        let known = waiting + counts.running.unwrap_or_default();
        Some(Self {
            length,
            in_flight: counts.running,
            waiting,
            hidden: counts.hidden.unwrap_or_else(|| length.saturating_sub(known)),
            oldest_seconds: overview.oldest.map(|age| age.as_secs_f64()),
            age_seconds: overview.age().map(|age| age.as_secs_f64()),
            states: overview.states,
            backing_off_seconds: counted(overview.oldest_backing_off),
            held_up: overview.states.map(|_| overview.held_up),
            held_up_seconds: counted(overview.oldest_held_up),
            dead: overview.dead_letters,
            rate: None,
            run_seconds: None,
            workers: workers.map(|workers| WorkerFigures::of(&overview.name, workers)),
            paused,
        })
    }

    /// Returns the number of leased messages that no present worker has recorded. If the storage does not
    /// count leases, every message that is not known to be visible counts as leased.
    pub(super) fn unrecorded(&self, overview: &QueueOverview) -> u64 {
        let running = self.workers.as_ref().map_or(0, |workers| workers.running);
        let visible = overview.visible.unwrap_or_default();
        let leased = overview.states.map_or(self.length.saturating_sub(visible), |states| states.running);
        leased.saturating_sub(running)
    }

    /// Adds the jobs that may run on workers with stale records. If the storage does not count leases, some
    /// of these jobs may have been counted as waiting: they become hidden.
    pub(super) fn add_lost(&mut self, lost: u64, overview: &QueueOverview) {
        let Some(workers) = &mut self.workers else { return };
        workers.lost = lost;
        if overview.states.is_none() {
            let invisible = lost.saturating_sub(self.hidden).min(self.waiting);
            (self.waiting, self.hidden) = (self.waiting - invisible, self.hidden + invisible);
        }
    }

    /// Returns `None` if the running jobs are unknown.
    pub(super) fn demand(&self) -> Option<Demand> {
        let running = self.workers.as_ref().map(|workers| workers.running_on_active + workers.lost)?;
        Some(Demand { waiting: if self.paused { 0 } else { self.waiting }, running })
    }
}

impl WorkerFigures {
    fn of(queue: &str, workers: &[WorkerOverview]) -> Self {
        let present: Vec<_> =
            workers.iter().filter(|worker| !worker.stale && worker.record.listens_to(queue)).collect();
        let active: Vec<_> = present.iter().copied().filter(|worker| !worker.record.draining).collect();
        let slots: u64 = active.iter().map(|worker| worker.record.slots_for(queue)).sum();
        Self {
            workers: active.len() as u64,
            draining: (present.len() - active.len()) as u64,
            slots,
            ready_workers: active.iter().filter(|worker| worker.record.has_slot_for(queue)).count() as u64,
            slots_per_worker: (!active.is_empty()).then(|| slots as f64 / active.len() as f64),
            circuits_open: active.iter().filter(|worker| worker.record.has_open_circuit(queue)).count()
                as u64,
            running: present.iter().map(|worker| worker.record.running_of(queue)).sum(),
            running_on_active: active.iter().map(|worker| worker.record.running_of(queue)).sum(),
            lost: 0,
        }
    }
}

fn rounded<S: Serializer>(number: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
    number.map(round).serialize(serializer)
}

/// Returns a number rounded to a thousandth.
pub(crate) fn round(number: f64) -> f64 {
    (number * 1e3).round() / 1e3
}
