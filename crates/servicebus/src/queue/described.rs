//! Describes queues.
//!
//! That a queue is missing takes two witnesses, the management API over HTTPS and AMQP: what has belonged to a missing queue is deleted. A gateway
//! before the management API can answer 404, and the service has done so for a queue that was there. Without the claim Manage, AMQP is the only one.

use super::super::entity::Description;
use super::super::error::Fault;
use super::super::place::Place;
use super::{ServiceBusQueues, manage};
use jobqueue_storage::QueueName;

impl ServiceBusQueues {
    /// Describes a queue, or that of its dead letters; `None` if there is none.
    pub(super) async fn describe(&self, queue: &QueueName) -> Result<Option<Description>, Fault> {
        let described = self.entities.describe(Place::of(queue).queue).await?;
        if described.is_none() {
            self.check_missing(queue).await?;
        }
        Ok(described)
    }

    /// Fails unless AMQP says that a queue is missing.
    ///
    /// # Errors
    /// [`Fault::Doubtful`], if the queue exists; those of AMQP.
    pub(super) async fn check_missing(&self, queue: &QueueName) -> Result<(), Fault> {
        // The links of a queue that was deleted a moment ago may still seem to be up: a request to them fails, and the next attach says why.
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
            return Err(Fault::Doubtful("no queue of that name, and AMQP reaches it".to_owned()));
        }
        Ok(())
    }

    /// Returns whether a queue exists: by its management node, which needs no claim Manage.
    pub(super) async fn exists(&self, queue: &QueueName) -> Result<bool, Fault> {
        match self.node(queue).await {
            Ok(_) => Ok(true),
            Err(fault) if fault.is_missing_entity() => Ok(false),
            Err(fault) => Err(fault),
        }
    }
}
