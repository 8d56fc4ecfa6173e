//! The health of a worker, for the checks of an orchestrator.
//!
//! It collects observations of the worker's other parts, and sends no requests of its own.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::LeaseRenewer;
use crate::storage::QueueName;
use crate::sync::lock;

/// A handle to the health of a worker. Cheap to clone. [`Worker::health`](crate::Worker::health) returns it.
///
/// It outlives the worker, and then shows that the worker has ended.
#[derive(Debug, Clone, Default)]
pub struct WorkerHealth(Arc<Mutex<HealthState>>);

/// The health of a worker at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthReport {
    /// The phase of the worker.
    pub phase: WorkerPhase,
    /// The queues that the worker listens to; empty before it runs.
    pub queues: Vec<QueueHealth>,
    /// The time by which the renewal of leases is behind. It is zero unless the thread that renews them is stuck.
    pub renewals_behind: Duration,
    /// The time since a lease ended before it was renewed, so that its job may run elsewhere; `None` if none has.
    pub since_lease_expired: Option<Duration>,
}

/// The phase of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WorkerPhase {
    /// The worker was not run yet, or opens its queues.
    #[default]
    Starting,
    /// The worker fetches jobs.
    Running,
    /// The worker finishes its running jobs and starts no others.
    Draining,
    /// The worker has ended.
    Ended,
}

/// The health of a worker's connection to one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueHealth {
    /// The queue.
    pub queue: QueueName,
    /// The time for which every request for jobs has failed; `None` if the last one succeeded.
    pub failing_for: Option<Duration>,
    /// The error of the last request, if it failed.
    pub error: Option<String>,
    /// True if the circuit is open: so many attempts failed in a row that the worker pauses fetching.
    pub circuit_open: bool,
}

#[derive(Debug, Default)]
struct HealthState {
    phase: WorkerPhase,
    queues: BTreeMap<QueueName, QueueState>,
    lease_expired: Option<Instant>,
    renewer: Option<LeaseRenewer>,
}

#[derive(Debug, Default)]
struct QueueState {
    failing: Option<(Instant, String)>,
    circuit_open: bool,
}

impl WorkerHealth {
    /// Returns the current health. It sends no request, and is based on the results of the worker's own requests.
    pub fn report(&self) -> HealthReport {
        let state = lock(&self.0);
        let queues = state.queues.iter().map(|(queue, state)| QueueHealth {
            queue: queue.clone(),
            failing_for: state.failing.as_ref().map(|(since, _)| since.elapsed()),
            error: state.failing.as_ref().map(|(_, error)| error.clone()),
            circuit_open: state.circuit_open,
        });
        HealthReport {
            phase: state.phase,
            queues: queues.collect(),
            renewals_behind: state.renewer.as_ref().map(LeaseRenewer::behind).unwrap_or_default(),
            since_lease_expired: state.lease_expired.map(|at| at.elapsed()),
        }
    }

    /// Notes that the worker has opened its queues.
    pub(super) fn begin(&self, queues: impl Iterator<Item = QueueName>, renewer: Option<LeaseRenewer>) {
        let mut state = lock(&self.0);
        state.phase = WorkerPhase::Running;
        state.queues = queues.map(|queue| (queue, QueueState::default())).collect();
        state.renewer = renewer;
    }

    pub(super) fn drain(&self) {
        lock(&self.0).phase = WorkerPhase::Draining;
    }

    /// Notes that the worker has ended, or that its future was dropped.
    pub(super) fn end(&self) {
        let mut state = lock(&self.0);
        state.phase = WorkerPhase::Ended;
        state.renewer = None;
    }

    /// Notes a request for jobs that succeeded.
    pub(super) fn reached(&self, queue: &QueueName) {
        self.change(queue, |state| state.failing = None);
    }

    /// Notes a request for jobs that failed.
    pub(super) fn failed(&self, queue: &QueueName, error: &str) {
        self.change(queue, |state| {
            let since = state.failing.take().map_or_else(Instant::now, |(since, _)| since);
            state.failing = Some((since, error.to_owned()));
        });
    }

    pub(super) fn circuit(&self, queue: &QueueName, is_open: bool) {
        self.change(queue, |state| state.circuit_open = is_open);
    }

    pub(super) fn lease_expired(&self) {
        lock(&self.0).lease_expired = Some(Instant::now());
    }

    fn change(&self, queue: &QueueName, change: impl FnOnce(&mut QueueState)) {
        if let Some(state) = lock(&self.0).queues.get_mut(queue) {
            change(state);
        }
    }
}
