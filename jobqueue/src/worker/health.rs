//! The health of a worker, for the checks of an orchestrator.
//!
//! This module collects the observations of the worker's other parts. It sends no requests.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::time::Instant;

use crate::lease::LeaseRenewer;
use crate::storage::QueueName;
use crate::sync::lock;

/// The quiet time after which failures belong to an earlier outage and are forgotten.
const LONG_REST: Duration = Duration::from_secs(60);

/// A handle to the health of a worker. Cheap to clone. [`Worker::health`](crate::Worker::health) returns it.
///
/// The handle outlives the worker, and then shows that the worker has ended.
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
    /// The time by which the renewal of leases is behind schedule. Zero unless the thread that renews them is
    /// stuck, or hundreds of renewals wait for a storage that does not answer.
    pub renewals_behind: Duration,
    /// The time since a lease last ended without renewal, so that its job may run elsewhere; `None` if that
    /// has not happened. A lease that ends with its message's time to live does not count.
    pub since_lease_expired: Option<Duration>,
}

/// The phase of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WorkerPhase {
    /// The worker has not been run yet, or is opening its queues.
    #[default]
    Starting,
    /// The worker is fetching jobs.
    Running,
    /// The worker is finishing its running jobs and starts no others.
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
    /// The time since the first of the latest requests for jobs that failed in a row. `None` if the last
    /// request succeeded, and while the worker sends no requests because the queue is paused or snoozed, its
    /// circuit is open, or all slots are in use.
    pub failing_for: Option<Duration>,
    /// The error of the last request, if [`failing_for`](Self::failing_for) is set.
    pub error: Option<String>,
    /// True if the circuit breaker is open: fetching is paused after repeated failures.
    pub circuit_open: bool,
}

#[derive(Debug, Default)]
struct HealthState {
    phase: WorkerPhase,
    queues: BTreeMap<QueueName, QueueState>,
    lease_expired: Option<Instant>,
    renewer: Option<LeaseRenewer>,
}

#[derive(Debug)]
struct FailureStreak {
    since: Instant,
    last: Instant,
    error: String,
}

#[derive(Debug, Default)]
struct QueueState {
    failing: Option<FailureStreak>,
    /// The time at which the worker stopped sending requests for jobs, if it sends none.
    resting: Option<Instant>,
    circuit_open: bool,
}

impl WorkerHealth {
    /// Returns the current health, from the results of the worker's requests. Sends no request.
    pub fn report(&self) -> HealthReport {
        let state = lock(&self.0);
        let queues = state.queues.iter().map(|(queue, state)| {
            let failing = state.failing.as_ref().filter(|_| state.resting.is_none());
            QueueHealth {
                queue: queue.clone(),
                failing_for: failing.map(|failing| failing.since.elapsed()),
                error: failing.map(|failing| failing.error.clone()),
                circuit_open: state.circuit_open,
            }
        });
        HealthReport {
            phase: state.phase,
            queues: queues.collect(),
            renewals_behind: state.renewer.as_ref().map(LeaseRenewer::behind).unwrap_or_default(),
            since_lease_expired: state.lease_expired.map(|at| at.elapsed()),
        }
    }

    pub(super) fn begin(&self, queues: impl Iterator<Item = QueueName>, renewer: Option<LeaseRenewer>) {
        let mut state = lock(&self.0);
        state.phase = WorkerPhase::Running;
        state.queues = queues.map(|queue| (queue, QueueState::default())).collect();
        state.renewer = renewer;
    }

    pub(super) fn drain(&self) {
        lock(&self.0).phase = WorkerPhase::Draining;
    }

    /// Records that the worker has ended, or that its future was dropped.
    pub(super) fn end(&self) {
        let mut state = lock(&self.0);
        state.phase = WorkerPhase::Ended;
        state.renewer = None;
    }

    /// Records a successful request for jobs.
    pub(super) fn note_success(&self, queue: &QueueName) {
        self.change(queue, |state| state.failing = None);
    }

    /// Records an empty answer that does not prove that the queue could be reached. Clears failures if the
    /// last is longer ago than a broken storage takes to fail again: `2 * LONG_REST`.
    pub(super) fn note_uncertain_answer(&self, queue: &QueueName) {
        self.change(queue, |state| {
            if state.failing.as_ref().is_some_and(|failing| failing.last.elapsed() > LONG_REST * 2) {
                state.failing = None;
            }
        });
    }

    /// Records a request for jobs that was sent at `sent` and failed.
    pub(super) fn note_failure(&self, queue: &QueueName, sent: Instant, error: &str) {
        self.change(queue, |state| {
            let since = state.failing.take().map_or(sent, |failing| failing.since);
            state.failing = Some(FailureStreak { since, last: Instant::now(), error: error.to_owned() });
        });
    }

    /// Records that the worker currently sends no requests for jobs, so that the state of the queue is
    /// unknown.
    pub(super) fn note_resting(&self, queue: &QueueName) {
        self.change(queue, |state| state.resting = state.resting.or_else(|| Some(Instant::now())));
    }

    /// Records that the worker sends requests for jobs again. Clears failures from before a long rest: they
    /// belong to another outage.
    pub(super) fn note_polling(&self, queue: &QueueName) {
        self.change(queue, |state| {
            if state.resting.take().is_some_and(|since| since.elapsed() > LONG_REST) {
                state.failing = None;
            }
        });
    }

    pub(super) fn set_circuit(&self, queue: &QueueName, is_open: bool) {
        self.change(queue, |state| state.circuit_open = is_open);
    }

    pub(super) fn note_lease_expired(&self) {
        lock(&self.0).lease_expired = Some(Instant::now());
    }

    fn change(&self, queue: &QueueName, change: impl FnOnce(&mut QueueState)) {
        if let Some(state) = lock(&self.0).queues.get_mut(queue) {
            change(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_count_from_the_first_request_and_while_requests_are_sent() {
        let (health, queue) = (WorkerHealth::default(), "tasks".parse::<QueueName>().unwrap());
        health.begin([queue.clone()].into_iter(), None);
        let failing_for = || health.report().queues[0].failing_for.map(|time| time.as_secs());
        let fail = async || {
            let sent = Instant::now();
            sleep(Duration::from_secs(40)).await;
            health.note_failure(&queue, sent, "no answer");
        };
        fail().await;
        assert_eq!(failing_for(), Some(40));
        health.note_resting(&queue);
        assert_eq!(failing_for(), None);
        sleep(Duration::from_secs(20)).await;
        health.note_polling(&queue);
        assert_eq!(failing_for(), Some(60), "a short rest, such as a wait for a slot, ends no outage");
        health.note_resting(&queue);
        sleep(Duration::from_secs(3_600)).await;
        health.note_resting(&queue);
        health.note_polling(&queue);
        fail().await;
        assert_eq!(failing_for(), Some(40));
        health.note_success(&queue);
        assert_eq!(failing_for(), None);
    }

    // An idle queue with sessions usually gives uncertain empty answers.
    #[tokio::test(start_paused = true)]
    async fn failures_are_over_when_uncertain_answers_follow_for_long() {
        let (health, queue) = (WorkerHealth::default(), QueueName::new("work").unwrap());
        health.begin([queue.clone()].into_iter(), None);
        health.note_failure(&queue, Instant::now(), "down");
        sleep(Duration::from_secs(40)).await;
        health.note_uncertain_answer(&queue);
        assert!(health.report().queues[0].failing_for.is_some());
        sleep(Duration::from_secs(81)).await;
        health.note_uncertain_answer(&queue);
        assert_eq!(health.report().queues[0].failing_for, None);
    }
}
