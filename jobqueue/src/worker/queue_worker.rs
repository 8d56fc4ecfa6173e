//! The data that the poller, the deliveries and the deletions of one queue share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::activity::Activity;
use super::circuit::{Circuit, Probe};
use super::limits::{Occupied, Snooze};
use super::registry::QueueHandlers;
use super::shared::Shared;
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
    pub(super) snooze: Arc<Snooze>,
    pub(super) activity: Arc<Activity>,
    /// Fires when no further delivery may start.
    pub(super) stop: CancellationToken,
    /// Fires when running handlers must be dropped.
    pub(super) abort: CancellationToken,
    pub(super) tasks: TaskTracker,
    /// True if the worker runs until it is idle.
    pub(super) until_idle: bool,
}

/// The slot and the lease of a delivery. When it is dropped, also half-way, first the lease ends, then the slot
/// becomes free, then the job is over.
pub(super) struct DeliveryGuard {
    activity: Arc<Activity>,
    slot: Option<Occupied>,
    probe: Option<Probe>,
    lease: Mutex<Option<Arc<Lease>>>,
}

impl DeliveryGuard {
    pub(super) fn new(activity: &Arc<Activity>, slot: Occupied, probe: Option<Probe>) -> Self {
        Self { activity: Arc::clone(activity), slot: Some(slot), probe, lease: Mutex::default() }
    }

    /// Returns the circuit's probe if this delivery is one.
    pub(super) fn probe(&self) -> Option<&Probe> {
        self.probe.as_ref()
    }

    /// Ends the lease together with the delivery, even if others still refer to it: a context may outlive its worker.
    pub(super) fn ends(&self, lease: &Arc<Lease>) {
        *lock(&self.lease) = Some(Arc::clone(lease));
    }

    /// Leaves the lease to the shutdown, which has taken over the message.
    pub(super) fn is_taken_over(&self) {
        lock(&self.lease).take();
    }

    /// Returns `Ok` if the handler of `kind` may begin now, else the time for which the message is put back.
    pub(super) fn admit(&self, kind: &str) -> Result<(), Duration> {
        self.slot.as_ref().map_or(Ok(()), |slot| slot.admit(kind))
    }

    /// Frees the slot for another handler: this one has finished, and its message is about to be deleted.
    pub(super) fn handler_is_done(&self) {
        if let Some(slot) = &self.slot {
            slot.handler_is_done();
        }
    }

    /// Frees the slot for another delivery: this one waits before its handler runs.
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

impl Drop for DeliveryGuard {
    fn drop(&mut self) {
        if let Some(lease) = lock(&self.lease).take() {
            lease.abandon();
        }
        self.slot.take();
        self.activity.finished();
    }
}
