//! Finds out which queues require sessions.

use std::future::ready;
use std::pin::pin;
use std::time::Duration;

use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use tokio::time::timeout;

use super::super::entity::Description;
use super::super::error::Fault;
use super::super::place::Place;
use super::ServiceBusQueues;
use jobqueue_storage::{Operation, QueueName, StoreError};

/// The time for which the management API alone is waited for: behind a firewall that drops packets it answers nothing.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// Returns whether a queue requires sessions; `None` if there is no such queue. All callers wait for one answer.
pub(super) type SessionsAsked = Shared<BoxFuture<'static, Result<Option<bool>, Fault>>>;

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
        let asked = self
            .facts(queue, |facts| facts.sessions.get_or_insert_with(|| self.ask_for_sessions(queue)).clone());
        let found = asked.await.map_err(|fault| fault.of_read(operation.as_str(), queue))?;
        // A queue that does not exist is what the operation itself reports.
        Ok(found.unwrap_or_default())
    }

    /// Asks in a task: a caller may have less time than the management API takes.
    fn ask_for_sessions(&self, queue: &QueueName) -> SessionsAsked {
        let (queues, queue) = (self.clone(), queue.clone());
        let asking = self.links.runtime().spawn(async move {
            let found = queues.find_sessions(&queue).await;
            if !matches!(found, Ok(Some(_))) {
                // The next operation asks again.
                queues.facts(&queue, |facts| facts.sessions = None);
            }
            found
        });
        async move { asking.await.unwrap_or_else(|_| Err(Fault::not_sent("the runtime ends"))) }
            .boxed()
            .shared()
    }

    async fn find_sessions(&self, queue: &QueueName) -> Result<Option<bool>, Fault> {
        let mut describing = pin!(self.describe(queue));
        let described = match timeout(PATIENCE, &mut describing).await {
            Ok(described) => described,
            Err(_) => match self.probe(queue).await {
                Ok(found) => return Ok(found),
                Err(_) => describing.await,
            },
        };
        match described {
            Ok(Some(Description { lock_duration, requires_session, .. })) => {
                self.facts(queue, |facts| facts.lock_length = lock_duration);
                Ok(Some(requires_session))
            }
            Ok(None) => Ok(None),
            Err(_) => match self.probe(queue).await {
                Err(fault) if fault.is_unauthorized() => Ok(Some(self.entities.creates_sessions())),
                found => found,
            },
        }
    }

    /// Attaches a link without a session.
    async fn probe(&self, queue: &QueueName) -> Result<Option<bool>, Fault> {
        match self.receiver(queue).await {
            Ok(_) => Ok(Some(false)),
            Err(fault) if fault.is_not_allowed() => Ok(Some(true)),
            Err(fault) if fault.is_missing_entity() => Ok(None),
            Err(fault) => Err(fault),
        }
    }

    /// Notes that a link without a session was attached. One to dead letters says nothing of their queue.
    pub(super) fn note_no_sessions(&self, queue: &QueueName) {
        if Place::of(queue).is_dead_letters {
            return;
        }
        let known = ready(Ok(Some(false))).boxed().shared();
        self.facts(queue, |facts| facts.sessions = Some(known));
    }

    /// Asks again with the next operation, because the queue may be another one than before, also for transactions. Sessions that are held
    /// stay: if that is so, their links say it.
    pub(super) fn forget_sessions(&self, queue: &QueueName) {
        self.facts(queue, |facts| (facts.sessions, facts.lacks_transactions) = (None, false));
    }
}
