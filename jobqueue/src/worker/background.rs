//! Background work: runs beside the pollers as long as the worker does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::delivery::DeliveryState;
use crate::error::Error;
use crate::message::QueueMessage;
use crate::queue_core::{Queue, QueueOf};
use crate::storage::Storage;

pub(super) type Background =
    Box<dyn FnOnce(BackgroundContext) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// The part of a worker that background work may use.
#[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
pub(crate) struct BackgroundContext {
    delivery_state: Arc<DeliveryState>,
    /// Fires when the worker stops. The worker then waits for the background work to end.
    pub(crate) stop: CancellationToken,
}

#[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
impl BackgroundContext {
    pub(super) fn new(delivery_state: &Arc<DeliveryState>, stop: CancellationToken) -> Self {
        Self { delivery_state: Arc::clone(delivery_state), stop }
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.delivery_state.storage
    }

    /// Opens the queue of `M` with the worker's options.
    pub(crate) async fn queue<M: QueueMessage>(&self) -> Result<Queue<M>, Error> {
        Ok(Queue::of(self.delivery_state.core(QueueOf::of::<M>()).await?))
    }
}
