//! Finds out which queues require sessions.

use super::super::entity::Description;
use super::super::error::Fault;
use super::super::place::Place;
use super::ServiceBusQueues;
use jobqueue_storage::QueueName;
use jobqueue_storage::{Operation, StoreError};

impl ServiceBusQueues {
    /// Returns whether a queue requires sessions, which never changes. By its settings; if they cannot be read, by attaching a link
    /// without a session: the management API has limits and outages of its own. Without the claim Listen, by the options.
    ///
    /// # Errors
    /// When the service cannot be asked. Nothing was changed.
    pub(super) async fn requires_session(
        &self,
        queue: &QueueName,
        operation: Operation,
    ) -> Result<bool, StoreError> {
        // The messages of a dead-letter queue come without sessions.
        if Place::of(queue).is_dead_letters {
            return Ok(false);
        }
        if let Some(known) = self.facts(queue, |facts| facts.requires_session) {
            return Ok(known);
        }
        let found = match self.describe(queue).await {
            Ok(Some(Description { lock_duration, requires_session, .. })) => {
                self.facts(queue, |facts| facts.lock_length = lock_duration);
                Ok(Some(requires_session))
            }
            Ok(None) => Ok(None),
            Err(_) => self.probe(queue).await,
        };
        let found = found.map_err(|fault| fault.of_read(operation.as_str(), queue))?;
        self.facts(queue, |facts| facts.requires_session = found);
        // A queue that does not exist is what the operation itself reports.
        Ok(found.unwrap_or_default())
    }

    async fn probe(&self, queue: &QueueName) -> Result<Option<bool>, Fault> {
        match self.receiver(queue).await {
            Ok(_) => Ok(Some(false)),
            Err(fault) if fault.is_not_allowed() => Ok(Some(true)),
            Err(fault) if fault.is_missing_entity() => Ok(None),
            Err(fault) if fault.is_unauthorized() => Ok(Some(self.entities.creates_sessions())),
            Err(fault) => Err(fault),
        }
    }

    /// Asks again with the next operation, because the queue may be another one than before, also for transactions. Sessions that are held
    /// stay: if that is so, their links say it.
    pub(super) fn forget_sessions(&self, queue: &QueueName) {
        self.facts(queue, |facts| (facts.requires_session, facts.lacks_transactions) = (None, false));
    }
}
