//! The data that the poller, the deliveries and the deletions of one queue share, and the slots of the deliveries.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::activity::Activity;
use super::limits::Occupied;
use super::pacing::{Pacing, Probe};
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
    activity: Arc<Activity>,
    pacing: Arc<Pacing>,
    slot: Option<Occupied>,
    probe: Option<Probe>,
}

impl DeliveryGuard {
    pub(super) fn new(worker: &QueueWorker, slot: Occupied, probe: Option<Probe>) -> Self {
        let (activity, pacing) = (Arc::clone(&worker.activity), Arc::clone(&worker.pacing));
        Self { activity, pacing, slot: Some(slot), probe }
    }

    /// Returns the circuit's probe if this delivery is one.
    pub(super) fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }
}

impl DeliverySlot for DeliveryGuard {
    fn classify(&self, class: MessageClass) {
        self.pacing.classify(class);
    }

    fn reserve(&self, kind: &str) -> Result<(), Duration> {
        self.slot.as_ref().map_or(Ok(()), |slot| slot.reserve(kind))
    }

    fn give_back(&self) {
        if let Some(slot) = &self.slot {
            slot.give_back();
        }
    }

    fn admit(&self, kind: &str) -> Result<(), Duration> {
        self.slot.as_ref().map_or(Ok(()), |slot| slot.admit(kind))
    }

    fn reject(&self) -> Result<(), Duration> {
        self.pacing.reject()
    }

    fn handler_is_done(&self) {
        if let Some(slot) = &self.slot {
            slot.handler_is_done();
        }
    }

    fn leave(&self) {
        if let Some(slot) = &self.slot {
            slot.leave();
        }
        if let Some(probe) = &self.probe {
            probe.give_back();
        }
    }

    fn is_snoozed(&self) -> bool {
        self.pacing.snoozed_until().is_some()
    }

    fn take(&self) -> BoxFuture<'_, ()> {
        Box::pin(async {
            if let Some(slot) = &self.slot {
                slot.take_again().await;
            }
        })
    }
}

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        self.slot.take();
        self.activity.finished();
    }
}
