//! The record of a worker. Plain data, whose JSON workers and operators of other versions read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The upper bounds of the buckets of [`Counters::run_times`], in seconds. The last bucket has no bound.
pub const HISTOGRAM_BOUNDS: [f64; 15] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0];

/// The data that a worker publishes about itself. Times are RFC 3339, by the worker's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct WorkerRecord {
    /// The id of this run of the worker.
    pub id: String,
    /// The name, from [`WorkerBuilder::name`](crate::WorkerBuilder::name).
    pub name: String,
    /// The name of the host.
    pub host: String,
    /// The id of the process.
    pub pid: u32,
    /// The version of jobqueue.
    pub version: String,
    /// The time at which the worker was started.
    pub started: String,
    /// The time at which this record was written.
    pub written: String,
    /// The interval at which the record is written, in seconds.
    pub interval_seconds: f64,
    /// The queues that the worker listens to.
    pub queues: Vec<ListeningQueue>,
    /// The number of handlers that can run at once.
    pub slots: u32,
    /// True if the worker is stopping: it finishes its running jobs and starts no others.
    pub draining: bool,
    /// The running jobs, in the order in which they started. At most 1,000, and fewer if long ids and keys
    /// would make the record larger than 8 MiB.
    pub running: Vec<RunningJob>,
    /// The number of running jobs, including jobs that [`running`](Self::running) leaves out.
    pub running_total: u64,
    /// The counters since the start, for each queue and kind.
    pub counters: Vec<Counters>,
}

/// The kind of a handler that takes events of every kind.
pub(crate) const EVERY_KIND: &str = "*";

/// A queue that a worker listens to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ListeningQueue {
    /// The name.
    pub name: String,
    /// The kinds for which the worker has handlers, with their aliases and the kinds of former versions; `*`
    /// for a relay.
    pub kinds: Vec<String>,
    /// True if the circuit is open: so many attempts failed in a row that the worker pauses fetching.
    #[serde(default)]
    pub circuit_open: bool,
    /// The maximum number of jobs of the queue that the worker runs at once, if it is
    /// [limited](crate::WorkerBuilder::limit_queue).
    pub concurrency: Option<u64>,
    /// The number of the worker's slots that are reserved for this queue.
    #[serde(default)]
    pub reserved: u64,
    /// The [limits](crate::WorkerBuilder::limit) of kinds.
    #[serde(default)]
    pub limits: Vec<KindLimits>,
}

/// The limits of a kind within one worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct KindLimits {
    /// The kind.
    pub kind: String,
    /// The other names of the kind that the handler accepts, including names of former versions. The limits
    /// apply to the jobs under all names together.
    #[serde(default)]
    pub aliases: Vec<String>,
    /// The maximum number of jobs of the kind that the worker runs at once, if it is limited.
    pub concurrency: Option<u64>,
    /// The maximum number of jobs of the kind that begin per second, if it is limited.
    pub per_second: Option<f64>,
}

impl ListeningQueue {
    pub(crate) fn new(name: String, kinds: Vec<String>) -> Self {
        Self { name, kinds, circuit_open: false, concurrency: None, reserved: 0, limits: Vec::new() }
    }

    /// Returns whether the worker has a handler for the kind, or a relay, which accepts every kind.
    pub fn takes(&self, kind: &str) -> bool {
        self.kinds.iter().any(|known| known == kind || known == EVERY_KIND)
    }

    /// Returns the kinds for which the worker has handlers, without the `*` of a relay.
    pub fn named_kinds(&self) -> impl Iterator<Item = &str> {
        self.kinds.iter().map(String::as_str).filter(|kind| *kind != EVERY_KIND)
    }
}

impl KindLimits {
    pub(crate) fn new(
        kind: &str,
        kinds: &[&str],
        concurrency: Option<usize>,
        per_second: Option<f64>,
    ) -> Self {
        let aliases = kinds.iter().filter(|name| **name != kind).map(|name| (*name).to_owned()).collect();
        Self { kind: kind.to_owned(), aliases, concurrency: concurrency.map(|jobs| jobs as u64), per_second }
    }

    /// Returns whether the limits apply to jobs of this kind.
    pub fn cover(&self, kind: &str) -> bool {
        self.kind == kind || self.aliases.iter().any(|alias| alias == kind)
    }
}

/// A running job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RunningJob {
    /// The queue.
    pub queue: String,
    /// The job's id.
    pub id: String,
    /// The sender.
    pub source: String,
    /// The kind.
    pub kind: String,
    /// The key.
    pub key: Option<String>,
    /// The number of the current attempt.
    pub attempt: u32,
    /// The number of the last attempt: if it fails, the job is dead-lettered.
    pub max_attempts: u32,
    /// The time at which the message was put into the queue, by the storage's clock.
    pub inserted: Option<String>,
    /// The time at which the handler started.
    pub since: String,
    /// The seconds for which the handler had run when the record was written.
    pub running_seconds: f64,
    /// The length of the job's lease in the storage, in seconds; on Service Bus the length of the lock, if
    /// that is longer. The worker renews the lease while the handler runs. If the worker dies, another worker
    /// can run the job at the latest this long after the last renewal.
    pub lease_seconds: Option<f64>,
    /// The latest progress that the handler has reported.
    pub progress: Option<JobProgress>,
    /// The trace context: a W3C `traceparent`.
    pub trace: Option<String>,
    /// True if an operator has cancelled the job and its handler has not ended yet.
    #[serde(default)]
    pub cancelling: bool,
}

/// The progress of a job, as its handler reported it with [`Context::progress`](crate::Context::progress).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct JobProgress {
    /// The amount of work that is done.
    pub done: u64,
    /// The total amount of work; 0 if it is unknown.
    pub total: u64,
    /// A text for people: at most 200 characters in one line.
    pub text: String,
}

/// The counters of a worker for one kind on one queue, since the worker started.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Counters {
    /// The queue.
    pub queue: String,
    /// The kind; empty for messages that are not events.
    pub kind: String,
    /// Completed jobs.
    pub completed: u64,
    /// Failed attempts that will be retried.
    pub retried: u64,
    /// Dead-lettered messages.
    pub dead_lettered: u64,
    /// Dead-lettered messages whose jobs were cancelled, without a failed attempt.
    #[serde(default)]
    pub cancelled: u64,
    /// Deliveries with another outcome: released, duplicates, lost leases.
    pub other: u64,
    /// The [other](Self::other) deliveries whose lease was lost.
    #[serde(default)]
    pub lease_lost: u64,
    /// The sum of the run times of all handlers, in seconds.
    pub run_seconds: f64,
    /// The number of run times up to each bound of [`HISTOGRAM_BOUNDS`], and above the last bound.
    pub run_times: Vec<u64>,
}

impl Counters {
    pub(super) fn new(queue: &str, kind: &str) -> Self {
        Self {
            queue: queue.to_owned(),
            kind: kind.to_owned(),
            completed: 0,
            retried: 0,
            dead_lettered: 0,
            cancelled: 0,
            other: 0,
            lease_lost: 0,
            run_seconds: 0.0,
            run_times: vec![0; HISTOGRAM_BOUNDS.len() + 1],
        }
    }

    /// Returns whether no delivery was counted.
    pub(super) fn is_zero(&self) -> bool {
        self.completed + self.retried + self.dead_lettered + self.other == 0
    }
}

impl WorkerRecord {
    /// Returns whether the worker listens to this queue.
    pub fn listens_to(&self, queue: &str) -> bool {
        self.listening(queue).is_some()
    }

    /// Returns the number of jobs of a queue that the worker can run at once: its slots, except for slots
    /// reserved for its other queues, or the limit of the queue if that is less. Returns 0 if the worker does
    /// not listen to the queue.
    pub fn slots_for(&self, queue: &str) -> u64 {
        let slots = |queue: &ListeningQueue| queue.reserved + self.common();
        self.listening(queue).map_or(0, |queue| slots(queue).min(queue.concurrency.unwrap_or(u64::MAX)))
    }

    /// Returns whether the worker can start another job of a queue: the limit of the queue is not reached,
    /// and a slot is free that is reserved for this queue or for no queue.
    pub fn has_slot_for(&self, queue: &str) -> bool {
        let Some(listening) = self.listening(queue) else { return false };
        let mut by_queue = BTreeMap::<&str, u64>::new();
        for job in &self.running {
            *by_queue.entry(&job.queue).or_default() += 1;
        }
        let running_of = |queue: &str| self.extrapolated(by_queue.get(queue).copied().unwrap_or_default());
        let running = running_of(queue);
        let beyond = |queue: &ListeningQueue| running_of(&queue.name).saturating_sub(queue.reserved);
        let is_limited = listening.concurrency.is_some_and(|limit| running >= limit);
        let common_in_use: u64 = self.queues.iter().map(beyond).sum();
        !is_limited && (running < listening.reserved || common_in_use < self.common())
    }

    /// Returns the number of running jobs of a queue.
    pub fn running_of(&self, queue: &str) -> u64 {
        self.running_that(|job| job.queue == queue)
    }

    /// Returns the number of running jobs that `selects` selects. Extrapolates to the jobs that the record
    /// leaves out.
    pub fn running_that(&self, selects: impl Fn(&RunningJob) -> bool) -> u64 {
        self.extrapolated(self.running.iter().filter(|job| selects(job)).count() as u64)
    }

    /// Returns the number of running jobs of which the record has `named`.
    fn extrapolated(&self, named: u64) -> u64 {
        match self.running.len() as u64 {
            0 => 0,
            all => (named * self.running_total.max(all)).div_ceil(all),
        }
    }

    /// Returns the number of slots that are reserved for no queue.
    fn common(&self) -> u64 {
        let reserved = self.queues.iter().map(|queue| queue.reserved).sum();
        u64::from(self.slots).saturating_sub(reserved)
    }

    /// Returns whether the worker has stopped fetching from the queue because every job fails.
    pub fn has_open_circuit(&self, queue: &str) -> bool {
        self.listening(queue).is_some_and(|queue| queue.circuit_open)
    }

    fn listening(&self, queue: &str) -> Option<&ListeningQueue> {
        self.queues.iter().find(|listening| listening.name == queue)
    }
}
