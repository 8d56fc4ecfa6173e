//! What the poller, the deliveries and the deletions of one queue share. Data only.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::activity::Activity;
use super::circuit::Circuit;
use super::registry::QueueHandlers;
use super::shared::Shared;
use super::slot::Occupied;
use crate::queue::QueueCore;

/// One queue of a worker.
pub(super) struct QueueWorker {
    pub(super) shared: Arc<Shared>,
    pub(super) core: Arc<QueueCore>,
    pub(super) handlers: Arc<QueueHandlers>,
    pub(super) circuit: Circuit,
    pub(super) activity: Arc<Activity>,
    /// Fires when nothing more is to be begun.
    pub(super) stop: CancellationToken,
    /// Fires when handlers are to be dropped where they are.
    pub(super) abort: CancellationToken,
    pub(super) tasks: TaskTracker,
}

/// The place of a delivery in its worker. When it is dropped, also in the middle, the slot is free, and then the job is over.
pub(super) struct Place {
    activity: Arc<Activity>,
    slot: Option<Occupied>,
}

impl Place {
    pub(super) fn new(activity: &Arc<Activity>, slot: Occupied) -> Self {
        Self { activity: Arc::clone(activity), slot: Some(slot) }
    }

    /// Leaves the slot to another handler: this one is done, its message is about to be deleted.
    pub(super) fn handler_is_done(&self) {
        if let Some(slot) = &self.slot {
            slot.handler_is_done();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.slot.take();
        self.activity.finished();
    }
}
