//! Background work: runs beside the pollers as long as the worker does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use super::shared::Shared;
use crate::clock::Clock;
use crate::error::Error;
use crate::lease::LeaseRenewer;
use crate::message::QueueMessage;
use crate::queue::Queue;
use crate::storage::Storage;

pub(super) type Background =
    Box<dyn FnOnce(BackgroundContext) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// The part of a worker that background work may use.
#[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
pub(crate) struct BackgroundContext {
    shared: Arc<Shared>,
    /// Fires when the worker stops. The worker then waits for the background work to end.
    pub(crate) stop: CancellationToken,
}

#[cfg_attr(not(feature = "schedule"), allow(dead_code, reason = "only schedules need it"))]
impl BackgroundContext {
    pub(super) fn new(shared: &Arc<Shared>, stop: CancellationToken) -> Self {
        Self { shared: Arc::clone(shared), stop }
    }

    pub(crate) fn storage(&self) -> &Storage {
        &self.shared.storage
    }

    pub(crate) fn clock(&self) -> Arc<dyn Clock> {
        self.shared.channel_options().clock
    }

    /// Returns the lease renewer that tests run on the current runtime.
    pub(crate) fn renewer(&self) -> Option<LeaseRenewer> {
        self.shared.channel_options().renewer
    }

    /// Opens the queue of `M` with the worker's options.
    pub(crate) async fn queue<M: QueueMessage>(&self) -> Result<Queue<M>, Error> {
        Ok(Queue::of(self.shared.core::<M>(M::QUEUE).await?))
    }
}
