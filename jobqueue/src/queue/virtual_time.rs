//! Queues on virtual time, for tests.

use std::sync::Arc;

use super::channel::{Channel, ChannelOptions};
use super::typed::Queue;
use crate::lease::Keeper;
use crate::storage::Storage;
use crate::vocabulary::clock::Clock;
use crate::vocabulary::error::Error;
use crate::vocabulary::message::QueueMessage;
use crate::vocabulary::name::QueueName;

impl Storage {
    /// The queue of `M` as [`queue`](Self::queue), with the time from `clock` and leases renewed on the current runtime:
    /// for tests on paused time.
    ///
    /// # Errors
    /// What the storage says.
    ///
    /// # Cancel safety
    /// The queue may have been created; nothing else is begun.
    pub async fn queue_on_virtual_time<M: QueueMessage>(
        &self,
        clock: Arc<dyn Clock>,
    ) -> Result<Queue<M>, Error> {
        let keeper = Some(Keeper::on_this_runtime());
        let options = ChannelOptions { defaults: M::DEFAULTS, clock, keeper, ..ChannelOptions::default() };
        Ok(Queue::of(Channel::open(self, QueueName::new(M::QUEUE)?, options).await?))
    }
}
