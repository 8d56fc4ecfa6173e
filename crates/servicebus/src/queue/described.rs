//! Describes queues.
//!
//! Two sources must agree that a queue is missing, the management API over HTTPS and AMQP, because everything
//! that belongs to a missing queue is deleted. A gateway in front of the management API can answer 404, and
//! the service has done so for a queue that existed. Without the claim Manage, AMQP is the only source.

use super::super::entity::Description;
use super::super::error::Fault;
use super::super::place::Place;
use super::{ServiceBusQueues, manage};
use jobqueue_storage::QueueName;

impl ServiceBusQueues {
    /// Describes a queue, or for a dead-letter queue the queue that it belongs to; `None` if there is none.
    pub(super) async fn describe(&self, queue: &QueueName) -> Result<Option<Description>, Fault> {
        let described = self.entities.describe(Place::of(queue).queue).await?;
        if described.is_none() {
            self.check_missing(queue).await?;
        }
        Ok(described)
    }

    /// Fails unless AMQP confirms that a queue is missing.
    ///
    /// # Errors
    /// [`Fault::Doubtful`] if the queue exists, and the faults of AMQP.
    pub(super) async fn check_missing(&self, queue: &QueueName) -> Result<(), Fault> {
        // The links of a recently deleted queue may still seem to be up: a request on them fails, and the
        // next attach fails with the reason.
        let is_reached = match self.node(queue).await {
            Ok(node) => match manage::peek(&node, 0, 1).await {
                Ok(_) => true,
                Err(fault) if fault.is_missing_entity() => false,
                Err(_) => self.exists(queue).await?,
            },
            Err(fault) if fault.is_missing_entity() => false,
            Err(fault) => return Err(fault),
        };
        if is_reached {
            return Err(Fault::Doubtful(
                "the management API knows no such queue, but AMQP reaches it".to_owned(),
            ));
        }
        Ok(())
    }

    /// Returns whether a queue exists. Asks its management node, for which the claim Manage is not needed.
    pub(super) async fn exists(&self, queue: &QueueName) -> Result<bool, Fault> {
        match self.node(queue).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.is_missing_entity() => Ok(false),
            Err(fault) => Err(fault),
        }
    }
}
