//! Defines what the poller, the deliveries and the deletions of one queue share. Data only.

use std::sync::{Arc, Mutex};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::activity::Activity;
use super::circuit::{Circuit, Probe};
use super::registry::QueueHandlers;
use super::shared::Shared;
use super::slot::Occupied;
use super::unknown_share::UnknownShare;
use crate::lease::Lease;
use crate::queue::QueueCore;
use crate::sync::lock;

/// One queue of a worker.
pub(super) struct QueueWorker {
    pub(super) shared: Arc<Shared>,
    pub(super) core: Arc<QueueCore>,
    pub(super) handlers: Arc<QueueHandlers>,
    pub(super) circuit: Arc<Circuit>,
    pub(super) unknown: UnknownShare,
    pub(super) activity: Arc<Activity>,
    /// Fires when nothing more is to be begun.
    pub(super) stop: CancellationToken,
    /// Fires when handlers are to be dropped where they are.
    pub(super) abort: CancellationToken,
    pub(super) tasks: TaskTracker,
    /// True if somebody waits for the queues to be empty.
    pub(super) until_idle: bool,
}

/// The place of a delivery in its worker. When it is dropped, also in the middle, the lease ends, then the slot is free, and then the job
/// is over.
pub(super) struct Place {
    activity: Arc<Activity>,
    slot: Option<Occupied>,
    probe: Option<Probe>,
    lease: Mutex<Option<Arc<Lease>>>,
}

impl Place {
    pub(super) fn new(activity: &Arc<Activity>, slot: Occupied, probe: Option<Probe>) -> Self {
        Self { activity: Arc::clone(activity), slot: Some(slot), probe, lease: Mutex::default() }
    }

    /// Returns the probe of the circuit, if the delivery is one.
    pub(super) fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }

    /// Ends the lease with the delivery, whoever else still knows it: a context may outlive its worker.
    pub(super) fn ends(&self, lease: &Arc<Lease>) {
        *lock(&self.lease) = Some(Arc::clone(lease));
    }

    /// Leaves the lease to another, who has taken the message over.
    pub(super) fn is_taken_over(&self) {
        lock(&self.lease).take();
    }

    /// Leaves the slot to another handler: this one is done, its message is about to be deleted.
    pub(super) fn handler_is_done(&self) {
        if let Some(slot) = &self.slot {
            slot.handler_is_done();
        }
    }

    /// Leaves the slot to another delivery: this one waits for something before its handler runs.
    pub(super) fn leave_slot(&self) {
        if let Some(slot) = &self.slot {
            slot.leave();
        }
    }

    /// Waits for a slot after [`leave_slot`](Self::leave_slot). Cancel-safe.
    pub(super) async fn take_slot(&self) {
        if let Some(slot) = &self.slot {
            slot.take_again().await;
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(lease) = lock(&self.lease).take() {
            lease.abandon();
        }
        self.slot.take();
        self.activity.finished();
    }
}
