//! The deliveries of one queue. Each runs as a task of its own, and its end is reported.
//!
//! Where one request for many messages costs less than many requests, the messages of jobs that finish at about the
//! same time are deleted together: while one request is under way, the next gathers.
//!
//! This module tracks the beginning and the end of deliveries, not what happens in between, nor how many there may
//! be.

use std::sync::{Arc, Mutex};

use super::pacing::Change;
use super::queue_worker::{DeliveryGuard, QueueWorker};
use crate::delivery::{DeliveryReport, Executor, Incoming};
use crate::event::Event;
use crate::job::outcome::{Outcome, printable};
use crate::sync::lock;

/// The maximum length of an id in the log, in characters.
const MAX_ID_CHARS: usize = 1_024;
/// The maximum number of messages to delete by one request. A larger number would delay the first for little gain.
const MAX_TOGETHER: usize = 1_024;
/// The maximum number of concurrent requests: while the storage executes one, the next is already on its way.
const MAX_REQUESTS: usize = 2;

pub(super) struct Deliveries {
    pub(super) worker: QueueWorker,
    completions: Completions,
}

impl Deliveries {
    pub(super) fn new(worker: QueueWorker) -> Self {
        Self { worker, completions: Completions::default() }
    }

    /// Runs a delivery to its end in a task of its own. After the worker was stopped, puts the message back
    /// instead.
    pub(super) fn start(self: &Arc<Self>, message: Box<Incoming>, guard: DeliveryGuard) {
        let (deliveries, stopped) = (Arc::clone(self), self.worker.stop.is_cancelled());
        self.spawn(async move {
            let QueueWorker { state, executor, stop, abort, .. } = &deliveries.worker;
            // Declared first and so dropped last, also when the delivery is dropped half-way.
            let guard = guard;
            if stopped {
                // Boxed for the same reason as the next future.
                let report = Box::pin(executor.put_back(message, &guard)).await;
                state.report().count(&report.outcome);
                return;
            }
            // Boxed, so that the futures and tasks around it stay small.
            let deliver = Box::pin(executor.deliver(message, &guard, stop));
            match abort.run_until_cancelled(deliver).await {
                None => {}
                Some(report) if report.undeleted.is_some() => deliveries.complete(report, guard),
                Some(report) => deliveries.conclude(report, &guard),
            }
        });
    }

    fn complete(self: &Arc<Self>, report: DeliveryReport, guard: DeliveryGuard) {
        if self.completions.add(report, guard) {
            let deliveries = Arc::clone(self);
            self.spawn(async move {
                let hand_over = |report: DeliveryReport, guard| match report.undeleted {
                    None => deliveries.conclude(report, &guard),
                    Some(_) => deliveries.delete_alone(report, guard),
                };
                let delete = Box::pin(deliveries.completions.delete(&deliveries.worker.executor, hand_over));
                deliveries.worker.abort.run_until_cancelled(delete).await;
            });
        }
    }

    /// Deletes the message of a delivery that could not be deleted with others, for which neither they nor the next ones wait.
    fn delete_alone(self: &Arc<Self>, report: DeliveryReport, guard: DeliveryGuard) {
        let deliveries = Arc::clone(self);
        self.spawn(async move {
            // Dropped in the reverse order: the lease ends before the slot is free.
            let guard = guard;
            let mut report = report;
            let QueueWorker { executor, abort, .. } = &deliveries.worker;
            let delete = Box::pin(executor.delete_alone(&mut report));
            if abort.run_until_cancelled(delete).await.is_some() {
                deliveries.conclude(report, &guard);
            }
        });
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let QueueWorker { executor, tasks, .. } = &self.worker;
        drop(executor.core.runtime().spawn(tasks.track_future(task)));
    }

    fn conclude(&self, report: DeliveryReport, guard: &DeliveryGuard) {
        let QueueWorker { state, executor, pacing, .. } = &self.worker;
        let (queue, events) = (&executor.core.name, &executor.state.events);
        self.log(&report);
        state.record(queue, &report);
        let DeliveryReport { job, outcome, attempted, ran, waited, error, .. } = report;
        events.tell(|| Event::Finished {
            job: job.clone(),
            queue: queue.clone(),
            outcome: outcome.clone(),
            ran,
            waited,
            error,
        });
        // The end of a message that did not run says nothing about the handlers.
        let change = match attempted {
            true => pacing.circuit.record(job.as_ref().map(|job| &job.id), &outcome, guard.probe()),
            false => None,
        };
        match change {
            Some(Change::Opened(retry_in)) => {
                crate::log::warn!(%queue, ?retry_in, "all jobs of this queue fail; fetching pauses");
                state.show_circuit(queue, true);
                events.tell(|| Event::CircuitOpened { queue: queue.clone(), retry_in });
            }
            Some(Change::Closed) => {
                crate::log::info!(%queue, "jobs succeed again");
                state.show_circuit(queue, false);
                events.tell(|| Event::CircuitClosed { queue: queue.clone() });
            }
            None => {}
        }
    }

    fn log(&self, report: &DeliveryReport) {
        let DeliveryReport { job, outcome, error, .. } = report;
        if *outcome == Outcome::Completed {
            return;
        }
        // One line: exporters write values as they are.
        let id = job.as_ref().map(|job| printable(&job.id, MAX_ID_CHARS));
        let queue = &self.worker.executor.core.name;
        match outcome {
            Outcome::DeadLettered(reason) => {
                crate::log::warn!(%queue, job = id, %reason, error, "message dead-lettered");
            }
            Outcome::Retried(wait) => {
                let attempt = job.as_ref().map(|job| job.attempt);
                crate::log::warn!(%queue, job = id, attempt, ?wait, error, "attempt failed; the job will be retried");
            }
            _ => {
                let name = outcome.as_str();
                crate::log::debug!(%queue, job = id, outcome = name, error, "delivery ended");
            }
        }
    }
}

/// A delivery whose handler has finished and whose message must be deleted. The fields are dropped in this order: the
/// lease ends before the slot is free.
struct Completion {
    report: DeliveryReport,
    guard: DeliveryGuard,
}

/// The deliveries that wait for the deletion of their messages.
#[derive(Default)]
struct Completions(Mutex<Gathered>);

#[derive(Default)]
struct Gathered {
    completions: Vec<Completion>,
    /// The number of tasks that send deletions.
    requests: usize,
}

impl Completions {
    /// Adds a delivery. Returns true if the caller must call [`delete`](Self::delete).
    fn add(&self, report: DeliveryReport, guard: DeliveryGuard) -> bool {
        let mut gathered = lock(&self.0);
        gathered.completions.push(Completion { report, guard });
        let is_first = gathered.requests < MAX_REQUESTS;
        gathered.requests += usize::from(is_first);
        is_first
    }

    /// Sends deletions until no message waits, and hands over each delivery, also one whose message has to be deleted alone. If the future is
    /// dropped with its worker, the remaining messages become visible again.
    async fn delete(&self, executor: &Executor, hand_over: impl Fn(DeliveryReport, DeliveryGuard)) {
        loop {
            // Declared before the reports and so dropped after them: leases end before their slots are free.
            let (guards, mut reports) = {
                let mut gathered = lock(&self.0);
                let count = gathered.completions.len().min(MAX_TOGETHER);
                if count == 0 {
                    gathered.requests -= 1;
                    return;
                }
                let taken = gathered.completions.drain(..count);
                let parts = taken.map(|Completion { report, guard }| (guard, report));
                parts.unzip::<_, _, Vec<_>, Vec<_>>()
            };
            executor.delete_together(&mut reports).await;
            for (report, guard) in reports.into_iter().zip(guards) {
                hand_over(report, guard);
            }
        }
    }
}
