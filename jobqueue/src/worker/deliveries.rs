//! The deliveries of one queue. Each delivery runs as a task, and its end is reported.
//!
//! This module knows the start and the end of a delivery. It knows neither the steps in between nor the
//! limits of concurrency.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use scopeguard::{ScopeGuard, guard};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::activity::Activity;
use super::limits::Occupied;
use super::pacing::{Circuit, CircuitChange, Permit, Probe, UnknownRatio};
use super::state::WorkerState;
use crate::delivery::{DeliveryReport, DeliverySlot, Executor, Incoming, MessageClass};
use crate::event::{Event, LossCause};
use crate::job::outcome::{Outcome, printable};
use crate::log::MAX_ID_CHARS;

/// The deliveries of one queue, and the data that they share with its poller.
pub(super) struct Deliveries {
    pub(super) state: Arc<WorkerState>,
    pub(super) executor: Executor,
    pub(super) circuit: Arc<Circuit>,
    pub(super) unknown: UnknownRatio,
    pub(super) activity: Arc<Activity>,
    /// Fires when no further delivery may start.
    pub(super) stop: CancellationToken,
    /// Fires when running handlers must be dropped.
    pub(super) abort: CancellationToken,
    pub(super) tasks: TaskTracker,
}

impl Deliveries {
    /// Runs a delivery to its end in a task. If the worker has been stopped, puts the message back instead.
    pub(super) fn start(self: &Arc<Self>, message: Box<Incoming>, guard: DeliveryGuard) {
        let (deliveries, stopped) = (Arc::clone(self), self.stop.is_cancelled());
        self.state.report().begin();
        self.spawn(async move {
            let Self { state, executor, stop, abort, .. } = &*deliveries;
            // Declared first and thus dropped last, even if the delivery is dropped half-way.
            let guard = guard;
            if stopped {
                // Boxed for the same reason as the next future.
                let report = Box::pin(executor.put_back(message, &guard)).await;
                state.report().count(&report);
                return;
            }
            // Boxed, so that the futures and tasks around it stay small.
            let deliver = Box::pin(executor.deliver(message, &guard, stop));
            if let Some(report) = abort.run_until_cancelled(deliver).await {
                deliveries.conclude(report, &guard);
            }
        });
    }

    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let Self { executor, tasks, .. } = self;
        drop(executor.core.runtime().spawn(tasks.track_future(task)));
    }

    fn conclude(&self, report: DeliveryReport, guard: &DeliveryGuard) {
        let Self { state, executor, circuit, .. } = self;
        let (queue, events) = (&executor.core.name, &executor.state.events);
        self.log(&report);
        state.record(queue, &report);
        let DeliveryReport { job, outcome, attempted, ran, waited, error, .. } = report;
        events.emit(|| Event::Finished {
            job: job.clone(),
            queue: queue.clone(),
            outcome: outcome.clone(),
            ran,
            waited,
            error,
        });
        // A delivery without an attempt says nothing about the handlers.
        let change = if attempted {
            circuit.record(job.as_ref().map(|job| &job.id), &outcome, guard.probe())
        } else {
            None
        };
        match change {
            Some(CircuitChange::Opened(retry_in)) => {
                crate::log::warn!(%queue, retry_in = %format_args!("{retry_in:.1?}"), "the circuit opens: all jobs of this queue fail; fetching pauses");
                state.show_circuit(queue, true);
                events.emit(|| Event::CircuitOpened { queue: queue.clone(), retry_in });
            }
            Some(CircuitChange::Closed) => {
                crate::log::info!(%queue, "the circuit closes: jobs succeed again");
                state.show_circuit(queue, false);
                events.emit(|| Event::CircuitClosed { queue: queue.clone() });
            }
            None => {}
        }
    }

    fn log(&self, report: &DeliveryReport) {
        let DeliveryReport { job, outcome, error, .. } = report;
        if *outcome == Outcome::Completed {
            return;
        }
        // `printable` yields one line: exporters write values unescaped.
        let id = job.as_ref().map(|job| printable(&job.id, MAX_ID_CHARS));
        let kind = job.as_ref().map(|job| printable(&job.kind, MAX_ID_CHARS));
        let queue = &self.executor.core.name;
        match outcome {
            Outcome::DeadLettered(reason) => {
                crate::log::warn!(%queue, job = id, kind, %reason, error, "message dead-lettered");
            }
            Outcome::Retried(wait) => {
                let attempt = job.as_ref().map(|job| job.attempt);
                crate::log::warn!(%queue, job = id, kind, attempt, wait = %format_args!("{wait:.1?}"), error, "attempt failed; the job will be retried");
            }
            _ if report.is_for_others && self.unknown.is_warning_due() => {
                crate::log::warn!(%queue, job = id, kind, error, "a message waits: no handler here can read it; logged once an hour");
            }
            Outcome::LeaseLost if report.lost.is_some() && !report.ran.is_zero() => {
                let (attempt, cause) =
                    (job.as_ref().map(|job| job.attempt), report.lost.map(LossCause::as_str));
                crate::log::warn!(%queue, job = id, attempt, cause, "lease lost; the job may run again");
            }
            _ => {
                let name = outcome.as_str();
                crate::log::debug!(%queue, job = id, outcome = name, error, "delivery ended");
            }
        }
    }
}

/// The slot of a delivery. Dropping the guard, even half-way, frees the slot and then counts the job as
/// finished. The lease ends before that, with the delivery.
pub(super) struct DeliveryGuard {
    slot: Occupied,
    probe: Option<Probe>,
    /// Counts the job as finished when it is dropped, as the last field.
    deliveries: ScopeGuard<Arc<Deliveries>, fn(Arc<Deliveries>)>,
}

impl DeliveryGuard {
    pub(super) fn new(deliveries: &Arc<Deliveries>, slot: Occupied, probe: Option<Probe>) -> Self {
        let finished: fn(Arc<Deliveries>) = |deliveries| deliveries.activity.finished();
        Self { slot, probe, deliveries: guard(Arc::clone(deliveries), finished) }
    }

    /// Returns the circuit's probe if this delivery is one.
    pub(super) fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }
}

impl DeliverySlot for DeliveryGuard {
    fn classify(&self, class: MessageClass) {
        self.deliveries.unknown.record(class);
    }

    fn reserve(&self, kind: &str) -> Result<(), Duration> {
        self.slot.reserve(kind)
    }

    fn give_back_permit(&self) {
        self.slot.give_back();
    }

    fn give_back(&self) {
        self.slot.give_back();
        if let Some(probe) = &self.probe {
            probe.give_back();
        }
    }

    fn admit(&self, kind: &str) -> Result<Duration, Duration> {
        self.slot.admit(kind)
    }

    fn reject(&self, longest: Duration) -> Result<(), Duration> {
        self.deliveries.state.rejections.permit(longest)
    }

    fn handler_is_done(&self) -> bool {
        self.slot.handler_is_done()
    }

    fn give_away(&self) {
        self.slot.give_away();
    }

    fn leave(&self) {
        self.slot.leave();
    }

    fn take_place_to_settle(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.slot.take_place_to_settle())
    }

    fn is_fetching_paused(&self) -> bool {
        let Deliveries { executor, circuit, .. } = &**self.deliveries;
        executor.snooze.until().is_some() || circuit.permit() != Permit::Closed
    }

    fn take(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.slot.take_again())
    }
}
