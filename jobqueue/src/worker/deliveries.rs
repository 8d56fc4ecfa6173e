//! The deliveries of one queue. Each runs as a task of its own, and its end is reported.
//!
//! This module knows when deliveries begin and end. It does not know what happens in between, nor how many there may
//! be.

use std::sync::Arc;

use super::circuit::Change;
use super::completion::{Completion, Completions};
use super::delivery::{self, Delivered};
use super::ending::Finished;
use super::queue_worker::{DeliveryGuard, QueueWorker};
use crate::event::Event;
use crate::job::outcome::{Outcome, printable};
use crate::queue::Incoming;
use crate::task;

/// The maximum length of an id in the log, in characters.
const MAX_ID_CHARS: usize = 1_024;

/// Starts the deliveries of a queue.
pub(super) struct Deliveries {
    pub(super) worker: QueueWorker,
    completions: Completions,
}

impl Deliveries {
    pub(super) fn new(worker: QueueWorker) -> Self {
        Self { worker, completions: Completions::default() }
    }

    /// Runs a delivery to its end in a task of its own. After the worker was told to stop, puts the message back
    /// instead.
    pub(super) fn start(self: &Arc<Self>, incoming: Box<Incoming>, guard: DeliveryGuard) {
        let (deliveries, stopped) = (Arc::clone(self), self.worker.stop.is_cancelled());
        task::spawn_tracked(&self.worker.tasks, async move {
            let worker = &deliveries.worker;
            // Declared first and so dropped last, also when the delivery is dropped half-way.
            let guard = guard;
            if stopped {
                // Boxed for the same reason as the next future.
                return Box::pin(delivery::put_back(worker, incoming)).await;
            }
            // Boxed, so that the futures and tasks around it stay small.
            let deliver = Box::pin(delivery::deliver(worker, incoming, &guard));
            match worker.abort.run_until_cancelled(deliver).await {
                None => {}
                Some(Delivered::Finished(finished)) => deliveries.conclude(finished, &guard),
                Some(Delivered::Done { leased_job, job, ran }) => {
                    deliveries.complete(Completion { leased_job, job, ran, guard });
                }
            }
        });
    }

    fn complete(self: &Arc<Self>, completion: Completion) {
        if self.completions.add(completion) {
            let deliveries = Arc::clone(self);
            task::spawn_tracked(&self.worker.tasks, async move {
                let conclude = |finished, guard: &DeliveryGuard| deliveries.conclude(finished, guard);
                let delete = Box::pin(deliveries.completions.delete(&deliveries.worker.shared, conclude));
                deliveries.worker.abort.run_until_cancelled(delete).await;
            });
        }
    }

    /// Reports how a delivery ended.
    fn conclude(&self, finished: Finished, guard: &DeliveryGuard) {
        let QueueWorker { shared, core, circuit, .. } = &self.worker;
        let queue = &core.name;
        shared.report().count(&finished.outcome);
        self.log(&finished);
        let Finished { job, outcome, ran, waited, error } = finished;
        shared.note_end(job.as_deref(), &outcome, ran, error.as_deref());
        if let Some(tracker) = shared.tracker() {
            tracker.count(queue.as_str(), job.as_deref(), &outcome, ran);
        }
        shared.events.tell(|| Event::Finished {
            job: job.clone(),
            queue: queue.clone(),
            outcome: outcome.clone(),
            ran,
            waited,
            error,
        });
        match circuit.record(job.as_ref().map(|job| &job.id), &outcome, guard.probe()) {
            Some(Change::Opened(retry_in)) => {
                tracing::warn!(%queue, ?retry_in, "every job on this queue fails; fetching pauses");
                shared.show_circuit(queue, true);
                shared.events.tell(|| Event::CircuitOpened { queue: queue.clone(), retry_in });
            }
            Some(Change::Closed) => {
                tracing::info!(%queue, "jobs succeed again");
                shared.show_circuit(queue, false);
                shared.events.tell(|| Event::CircuitClosed { queue: queue.clone() });
            }
            None => {}
        }
    }

    fn log(&self, finished: &Finished) {
        let Finished { job, outcome, error, .. } = finished;
        if *outcome == Outcome::Completed {
            return;
        }
        // One line: exporters write values as they are.
        let id = job.as_ref().map(|job| printable(&job.id, MAX_ID_CHARS));
        let queue = &self.worker.core.name;
        match outcome {
            Outcome::DeadLettered(reason) => {
                tracing::warn!(%queue, job = id, %reason, error, "message dead-lettered");
            }
            Outcome::Retried(wait) => {
                let attempt = job.as_ref().map(|job| job.attempt);
                tracing::warn!(%queue, job = id, attempt, ?wait, error, "attempt failed; the job is tried again");
            }
            _ => {
                let name = outcome.name();
                tracing::debug!(%queue, job = id, outcome = name, error, "delivery ended");
            }
        }
    }
}
