//! The data that the poller, the deliveries and the deletions of one queue share, and the slots of the deliveries.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::activity::Activity;
use super::limits::Occupied;
use super::pacing::{Pacing, Permit, Probe};
use super::state::WorkerState;
use crate::delivery::{DeliverySlot, Executor, MessageClass};

pub(super) struct QueueWorker {
    pub(super) state: Arc<WorkerState>,
    pub(super) executor: Executor,
    pub(super) pacing: Arc<Pacing>,
    pub(super) activity: Arc<Activity>,
    /// Fires when no further delivery may start.
    pub(super) stop: CancellationToken,
    /// Fires when running handlers must be dropped.
    pub(super) abort: CancellationToken,
    pub(super) tasks: TaskTracker,
}

/// The slot of a delivery. When it is dropped, also half-way, the slot becomes free, then the job is over. The lease ends
/// before, with the delivery.
pub(super) struct DeliveryGuard {
    pacing: Arc<Pacing>,
    slot: Occupied,
    probe: Option<Probe>,
    /// Dropped last.
    _job: JobGuard,
}

struct JobGuard(Arc<Activity>);

impl Drop for JobGuard {
    fn drop(&mut self) {
        self.0.finished();
    }
}

impl DeliveryGuard {
    pub(super) fn new(worker: &QueueWorker, slot: Occupied, probe: Option<Probe>) -> Self {
        let (pacing, job) = (Arc::clone(&worker.pacing), JobGuard(Arc::clone(&worker.activity)));
        Self { pacing, slot, probe, _job: job }
    }

    /// Returns the circuit's probe if this delivery is one.
    pub(super) fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }
}

impl DeliverySlot for DeliveryGuard {
    fn classify(&self, class: MessageClass) {
        self.pacing.unknown.note(class);
    }

    fn reserve(&self, kind: &str) -> Result<(), Duration> {
        self.slot.reserve(kind)
    }

    fn give_back(&self) {
        self.slot.give_back();
        self.probe.iter().for_each(Probe::give_back);
    }

    fn admit(&self, kind: &str) -> Result<Duration, Duration> {
        self.slot.admit(kind)
    }

    fn reject(&self) -> Result<(), Duration> {
        self.pacing.rejections.permit()
    }

    fn handler_is_done(&self) -> bool {
        self.slot.handler_is_done()
    }

    fn leave(&self) {
        self.slot.leave();
    }

    fn is_left_alone(&self) -> bool {
        self.pacing.snooze.until().is_some() || self.pacing.circuit.permit() != Permit::Closed
    }

    fn take(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.slot.take_again())
    }
}
