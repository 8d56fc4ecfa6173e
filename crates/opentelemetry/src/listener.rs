//! Turns events into metrics.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::{Event, JobInfo, QueueName, Reason};
use opentelemetry::{KeyValue, StringValue};

use crate::attributes::{destination, error_type, outcome_of};
use crate::conventions as names;
use crate::shared::Observed;

/// The metrics of one storage.
pub(crate) struct Listener {
    observed: Arc<Observed>,
}

impl Listener {
    pub(crate) fn new(observed: Arc<Observed>) -> Self {
        Self { observed }
    }

    pub(crate) fn record(&self, event: &Event) {
        let Observed { shared, storage, cells } = &*self.observed;
        let instruments = &shared.instruments;
        match event {
            Event::Sent { queue, messages, failed, error, .. } => {
                self.sent(queue, messages.saturating_sub(*failed), None);
                self.sent(queue, *failed, Some(error.unwrap_or(names::OTHER)));
            }
            Event::Received { queue, messages, .. } => {
                if *messages > 0 {
                    let name = KeyValue::new(names::OPERATION_NAME, names::RECEIVE);
                    instruments.consumed.add(*messages as u64, &storage.with_queue(queue, [name]));
                }
                // Flushes here too, because a view may drop the gauge whose collection reports these counts.
                cells.flush(&instruments.attempts, &instruments.in_flight);
            }
            Event::Started { job, waited, .. } => self.started(job, *waited),
            Event::Finished { job, queue, outcome, .. } => {
                let kind = job.as_ref().map(|job| &*job.kind);
                cells.of(queue, kind).count(outcome.as_str());
            }
            Event::DeadLettered { queue, reason, .. } => {
                let reason = KeyValue::new(names::REASON, bounded_reason(reason));
                instruments.dead_letters.add(1, &storage.with_queue(queue, [reason]));
            }
            Event::Renewed { queue, .. } => self.renewal(queue, "renewed"),
            Event::NotRenewed { queue, .. } => self.renewal(queue, "failed"),
            Event::LeaseLost { queue, cause, .. } => {
                let cause = KeyValue::new(names::CAUSE, cause.as_str());
                instruments.lost.add(1, &storage.with_queue(queue, [cause]));
            }
            // Leaves the state of the circuit alone: another worker of this process may have opened it.
            Event::Listening { queue, kinds, .. } => {
                cells.has_circuit(queue);
                for kind in kinds {
                    cells.own(queue, kind);
                }
            }
            Event::CircuitClosed { queue, .. } => cells.circuit(queue, false),
            Event::CircuitOpened { queue, .. } => cells.circuit(queue, true),
            Event::Throttled { .. } => instruments.throttled.add(1, &storage.with(None)),
            Event::StorageRequest { operation, queue, requests, error, .. } => {
                let operation = [KeyValue::new(names::STORAGE_OPERATION, *operation)];
                let (queue, error) = (queue.as_ref().map(destination), error.map(error_type));
                let attributes = storage.with(operation.into_iter().chain(queue).chain(error));
                instruments.transactions.add(*requests as u64, &attributes);
            }
            _ => {}
        }
    }

    fn renewal(&self, queue: &QueueName, outcome: &'static str) {
        let attributes = self.observed.storage.with_queue(queue, [outcome_of(outcome)]);
        self.observed.shared.instruments.renewals.add(1, &attributes);
    }

    /// Counts messages that were stored, or that failed with `error`.
    fn sent(&self, queue: &QueueName, count: usize, error: Option<&'static str>) {
        if count > 0 {
            let Observed { shared, storage, .. } = &*self.observed;
            let name = [KeyValue::new(names::OPERATION_NAME, names::SEND)];
            let attributes = storage.with_queue(queue, name.into_iter().chain(error.map(error_type)));
            shared.instruments.sent.add(count as u64, &attributes);
        }
    }

    fn started(&self, job: &JobInfo, waited: Duration) {
        // Later deliveries have also waited for their turn, and for the attempts before.
        if job.attempt == 1 && job.dequeue_count <= 1 {
            let cell = self.observed.cells.own(&job.queue, &job.kind);
            self.observed.shared.instruments.wait.record(waited.as_secs_f64(), cell.attributes());
        }
    }
}

/// Returns the code of a reason, or `_OTHER` if the framework does not define it: applications and messages
/// can contain any number of others.
fn bounded_reason(reason: &Reason) -> StringValue {
    if Reason::ALL.contains(reason) { reason.as_str().to_owned().into() } else { names::OTHER.into() }
}
