//! Finds out which queues require sessions.

use std::pin::pin;
use std::time::Duration;

use tokio::time::timeout;

use super::super::cache::Perishable;
use super::super::entity::Description;
use super::super::error::Fault;
use super::super::place::Place;
use super::ServiceBusQueues;
use jobqueue_storage::{Operation, QueueName, StoreError};

/// The time for which the management API alone is waited for: behind a firewall that drops packets it answers nothing.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// True for a queue that requires sessions: that never changes.
impl Perishable for bool {
    fn is_gone(&self) -> bool {
        false
    }
}

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
        let ask = || {
            let (queues, queue) = (self.clone(), queue.clone());
            async move { queues.find_sessions(&queue).await }
        };
        match self.sessions.get(self.links.runtime(), queue.as_str(), ask).await {
            // The operation itself reports that.
            Err(fault) if fault.is_missing_entity() => Ok(false),
            found => found.map_err(|fault| fault.of_read(operation.as_str(), queue)),
        }
    }

    async fn find_sessions(&self, queue: &QueueName) -> Result<bool, Fault> {
        let mut describing = pin!(self.describe(queue));
        let described = match timeout(PATIENCE, &mut describing).await {
            Ok(described) => described,
            Err(_) => match self.probe(queue).await {
                Err(fault) if !fault.is_missing_entity() => describing.await,
                found => return found,
            },
        };
        match described {
            Ok(Some(Description { lock_duration, requires_session, .. })) => {
                self.facts(queue, |facts| facts.lock_length = lock_duration);
                Ok(requires_session)
            }
            Ok(None) => Err(Fault::missing_queue()),
            Err(_) => match self.probe(queue).await {
                Err(fault) if fault.is_unauthorized() => Ok(self.entities.creates_sessions()),
                found => found,
            },
        }
    }

    /// Attaches a link without a session.
    async fn probe(&self, queue: &QueueName) -> Result<bool, Fault> {
        match self.receiver(queue).await {
            Err(fault) if fault.is_not_allowed() => Ok(true),
            attached => attached.map(|_| false),
        }
    }

    /// Notes that a link without a session was attached. One to dead letters says nothing of their queue.
    pub(super) fn note_no_sessions(&self, queue: &QueueName) {
        if !Place::of(queue).is_dead_letters {
            self.sessions.set(queue.as_str(), false);
        }
    }

    /// Asks again with the next operation, because the queue may be another one than before, also for transactions. Sessions that are held
    /// stay: if that is so, their links say it.
    pub(super) fn forget_sessions(&self, queue: &QueueName) {
        self.sessions.doubt(Place::of(queue).queue);
        self.facts(queue, |facts| facts.lacks_transactions = false);
    }
}
