//! Queues on virtual time, for tests.

use std::sync::Arc;

use super::queue_core::{QueueCore, QueueCoreOptions};
use super::typed::Queue;
use crate::clock::Clock;
use crate::error::Error;
use crate::lease::LeaseRenewer;
use crate::message::QueueMessage;
use crate::name::QueueName;
use crate::storage::Storage;

impl Storage {
    /// Opens the queue of `M` like [`queue`](Self::queue), but takes the time from `clock` and renews leases on the
    /// current runtime. For tests on paused time.
    ///
    /// # Errors
    /// [`Storage`](crate::ErrorKind::Storage) if the queue cannot be opened.
    ///
    /// # Cancel safety
    /// If the future is dropped, the queue may have been created; nothing else has changed.
    pub async fn queue_on_virtual_time<M: QueueMessage>(
        &self,
        clock: Arc<dyn Clock>,
    ) -> Result<Queue<M>, Error> {
        let renewer = Some(LeaseRenewer::on_this_runtime());
        let options =
            QueueCoreOptions { defaults: M::DEFAULTS, clock, renewer, ..QueueCoreOptions::default() };
        Ok(Queue::of(QueueCore::open(self, QueueName::new(M::QUEUE)?, options).await?))
    }
}
