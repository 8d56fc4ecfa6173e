//! The figures of one queue, from its overview and the records of workers.

use jobqueue::storage::StateCounts;
use jobqueue_admin::{QueueOverview, WorkerOverview};
use serde::{Serialize, Serializer};

/// The figures of one queue. The shards of a queue are one queue here.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QueueFigures {
    /// About how many messages there are, invisible ones included.
    pub length: u64,
    /// The running jobs: by their leases, if the storage counts them, and by the records of workers otherwise; `None` if these cannot be read.
    pub in_flight: Option<u64>,
    /// The jobs that a further worker could start now.
    ///
    /// It is the number of visible messages, if the storage counts them or a peek has shown all. Otherwise it is the length without the jobs
    /// that are known to run, which includes messages whose delay is not over. Jobs that wait for another of their key, or for a limit of their kind,
    /// are among them: storages count these with the others.
    pub waiting: u64,
    /// Invisible messages that are not known to run: delayed, between two attempts, just fetched, or fetched by a worker without a record.
    pub hidden: u64,
    /// The seconds since the oldest message that can be received was due, or was inserted where the storage does not show when it was due. On
    /// databases jobs that wait for another of their key do not count: 0 if all do. `None` if no message is visible, or, while jobs
    /// [wait](Self::waiting), if it is not known.
    #[serde(serialize_with = "rounded")]
    pub oldest_seconds: Option<f64>,
    /// The seconds that metrics report: 0 if no message is visible, and `None` if that is not known.
    #[serde(skip)]
    pub(crate) age_seconds: Option<f64>,
    /// The numbers of messages by state, where the storage counts them.
    #[serde(skip)]
    pub(crate) states: Option<StateCounts>,
    /// The seconds since the oldest of the messages that back off was sent, and 0 if there is none; `None` where the storage does not count them.
    #[serde(skip)]
    pub(crate) backing_off_seconds: Option<f64>,
    /// About how many dead letters there are; `None` if their queue cannot be read.
    pub dead: Option<u64>,
    /// The jobs completed a second over the last minute; `None` until two snapshots were taken.
    #[serde(serialize_with = "rounded")]
    pub rate: Option<f64>,
    /// The mean time that a handler ran over the last minute, or before if none has ended lately; `None` if none has ended.
    #[serde(serialize_with = "rounded")]
    pub run_seconds: Option<f64>,
    /// The workers of the queue; `None` if their records cannot be read. In JSON their figures stand among the others.
    #[serde(flatten)]
    pub workers: Option<WorkerFigures>,
    /// True if workers fetch nothing from the queue.
    pub paused: bool,
}

/// The figures of the workers of one queue, from their records.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WorkerFigures {
    /// The present workers that listen to the queue and are not draining.
    pub workers: u64,
    /// The present workers that listen to the queue and are draining.
    pub draining: u64,
    /// The slots that [`workers`](Self::workers) have for the queue: without those that they reserve for others. Queues of one worker share
    /// the rest.
    pub slots: u64,
    /// Those of [`workers`](Self::workers) that have a free slot for a further job of the queue.
    #[serde(skip)]
    pub ready_workers: u64,
    /// The mean number of slots of a worker, or that of workers that were here before; `None` if none was.
    pub slots_per_worker: Option<f64>,
    /// The workers that fetch nothing from the queue because everything fails.
    #[serde(skip)]
    pub circuits_open: u64,
    /// The jobs that run on all present workers.
    #[serde(skip)]
    running: u64,
    /// The jobs that run on workers that are not draining.
    #[serde(skip)]
    running_on_active: u64,
    /// The jobs that may run on workers with stale records.
    #[serde(skip)]
    pub(super) lost: u64,
}

/// The work of a queue at one moment, as an autoscaler counts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Demand {
    /// The jobs that could start now; 0 while the queue is paused.
    pub waiting: u64,
    /// The jobs that run, without those on draining workers: these need no slot of a worker that stays. Those of a worker that has stopped writing
    /// its record are included, since it may not reach the storage, but no more than messages are leased.
    pub running: u64,
}

impl QueueFigures {
    /// Returns `None` for a queue that could not be read. `workers` are `None` if their records could not.
    pub(crate) fn of(overview: &QueueOverview, workers: Option<&[WorkerOverview]>) -> Option<Self> {
        let (length, paused) = (overview.length?, overview.paused?);
        let workers = workers.map(|workers| WorkerFigures::of(&overview.name, workers));
        let recorded = workers.as_ref().map(|workers| workers.running);
        let in_flight = overview.states.map(|states| states.running).or(recorded);
        let rest = length.saturating_sub(in_flight.unwrap_or_default());
        let visible = overview.visible.unwrap_or_default();
        let waiting = match overview.states {
            Some(states) => states.waiting,
            None if overview.visible_is_exact => visible,
            None => rest.max(visible),
        };
        Some(Self {
            length,
            in_flight,
            waiting,
            hidden: rest.saturating_sub(waiting),
            oldest_seconds: overview.oldest.map(|age| age.as_secs_f64()),
            age_seconds: overview.age().map(|age| age.as_secs_f64()),
            states: overview.states,
            backing_off_seconds: overview
                .states
                .map(|_| overview.oldest_backing_off.unwrap_or_default().as_secs_f64()),
            dead: overview.dead_letters,
            rate: None,
            run_seconds: None,
            workers,
            paused,
        })
    }

    /// Returns the number of leased messages that no present worker has recorded or, if the storage does not count leases, of messages that are
    /// not known to be visible either.
    pub(super) fn unrecorded(&self, overview: &QueueOverview) -> u64 {
        let running = self.workers.as_ref().map_or(0, |workers| workers.running);
        let visible = overview.visible.unwrap_or_default();
        let leased = overview.states.map_or(self.length.saturating_sub(visible), |states| states.running);
        leased.saturating_sub(running)
    }

    /// Counts jobs that may run on workers with stale records. If the storage does not count leases, and has more messages than were seen, these
    /// jobs were taken for waiting ones.
    pub(super) fn add_lost(&mut self, lost: u64, overview: &QueueOverview) {
        let Some(workers) = &mut self.workers else { return };
        workers.lost = lost;
        if overview.states.is_none() {
            let invisible = lost.saturating_sub(self.hidden).min(self.waiting);
            (self.waiting, self.hidden) = (self.waiting - invisible, self.hidden + invisible);
        }
    }

    /// Returns `None` if the running jobs are not known.
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
