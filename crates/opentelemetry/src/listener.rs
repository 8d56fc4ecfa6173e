//! Turns events into metrics.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::{Event, JobInfo, QueueName, Reason};
use opentelemetry::{KeyValue, StringValue};

use crate::attributes::{destination, error_type, outcome_of};
use crate::conventions as names;
use crate::instruments::Instruments;
use crate::shared::Shared;

/// The metrics of one storage.
pub(crate) struct Listener {
    shared: Arc<Shared>,
    system: KeyValue,
}

impl Listener {
    pub(crate) fn new(shared: Arc<Shared>, system: &'static str) -> Self {
        Self { shared, system: KeyValue::new(names::SYSTEM, system) }
    }

    pub(crate) fn record(&self, event: &Event) {
        let instruments = &self.shared.instruments;
        match event {
            Event::Sent { queue, messages, failed, error, .. } => {
                self.sent(instruments, queue, messages.saturating_sub(*failed), None);
                self.sent(instruments, queue, *failed, Some(error.unwrap_or(names::OTHER)));
            }
            Event::Received { queue, messages, .. } => {
                if *messages > 0 {
                    let name = KeyValue::new(names::OPERATION_NAME, names::RECEIVE);
                    let attributes = [self.system.clone(), destination(queue), name];
                    instruments.consumed.add(*messages as u64, &attributes);
                }
                // Flushes here too, because a view may drop the gauge whose collection reports these counts.
                self.shared.cells.flush(&instruments.attempts, &instruments.in_flight);
            }
            Event::Started { job, waited, .. } => self.started(instruments, job, *waited),
            Event::Finished { job, queue, outcome, .. } => {
                let kind = job.as_ref().map(|job| &*job.kind);
                self.shared.cells.of(queue, kind).count(outcome.as_str());
            }
            Event::DeadLettered { queue, reason, .. } => {
                let reason = KeyValue::new(names::REASON, bounded_reason(reason));
                instruments.dead_letters.add(1, &[destination(queue), reason]);
            }
            Event::Renewed { queue, .. } => {
                instruments.renewals.add(1, &[destination(queue), outcome_of("renewed")]);
            }
            Event::NotRenewed { queue, .. } => {
                instruments.renewals.add(1, &[destination(queue), outcome_of("failed")]);
            }
            Event::LeaseLost { queue, cause, .. } => {
                let cause = KeyValue::new(names::CAUSE, cause.as_str());
                instruments.lost.add(1, &[destination(queue), cause]);
            }
            // Leaves the state of the circuit alone: another worker of this process may have opened it.
            Event::Listening { queue, kinds, .. } => {
                self.shared.cells.has_circuit(queue);
                for kind in kinds {
                    self.shared.cells.own(queue, kind);
                }
            }
            Event::CircuitClosed { queue, .. } => self.shared.cells.circuit(queue, false),
            Event::CircuitOpened { queue, .. } => self.shared.cells.circuit(queue, true),
            Event::Throttled { .. } => instruments.throttled.add(1, std::slice::from_ref(&self.system)),
            Event::StorageRequest { operation, queue, requests, error, .. } => {
                let (queue, error) = (queue.as_ref().map(destination), error.map(error_type));
                self.requests(instruments, operation, *requests as u64, (queue, error));
            }
            _ => {}
        }
    }

    fn requests(
        &self,
        instruments: &Instruments,
        operation: &'static str,
        requests: u64,
        more: (Option<KeyValue>, Option<KeyValue>),
    ) {
        let (all, system) = (&instruments.transactions, self.system.clone());
        let operation = KeyValue::new(names::STORAGE_OPERATION, operation);
        match more {
            (None, None) => all.add(requests, &[system, operation]),
            (Some(attribute), None) | (None, Some(attribute)) => {
                all.add(requests, &[system, operation, attribute]);
            }
            (Some(queue), Some(error)) => all.add(requests, &[system, operation, queue, error]),
        }
    }

    /// Counts messages that were stored, or that failed with `error`.
    fn sent(&self, instruments: &Instruments, queue: &QueueName, count: usize, error: Option<&'static str>) {
        if count == 0 {
            return;
        }
        let name = KeyValue::new(names::OPERATION_NAME, names::SEND);
        let (system, queue) = (self.system.clone(), destination(queue));
        match error {
            None => instruments.sent.add(count as u64, &[system, queue, name]),
            Some(error) => instruments.sent.add(count as u64, &[system, queue, name, error_type(error)]),
        }
    }

    fn started(&self, instruments: &Instruments, job: &JobInfo, waited: Duration) {
        // Later deliveries have also waited for their turn, and for the attempts before.
        if job.attempt == 1 && job.dequeue_count <= 1 {
            let cell = self.shared.cells.own(&job.queue, &job.kind);
            instruments.wait.record(waited.as_secs_f64(), cell.attributes());
        }
    }
}

/// Returns the code of a reason, or `_OTHER` if the framework does not define it: applications and messages
/// can contain any number of others.
fn bounded_reason(reason: &Reason) -> StringValue {
    if Reason::ALL.contains(reason) { reason.as_str().to_owned().into() } else { names::OTHER.into() }
}
