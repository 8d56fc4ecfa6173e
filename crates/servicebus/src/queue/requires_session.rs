//! Finds out which queues require sessions, and which may be partitioned.

use std::pin::pin;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::super::cache::Expiring;
use super::super::entity::Description;
use super::super::error::Fault;
use super::super::place::Place;
use super::ServiceBusQueues;
use super::facts::SETTINGS_PAUSE;
use jobqueue_storage::{Operation, QueueName, StoreError};

/// The time that the management API is waited for, before a link is tried as well or a get proceeds without
/// the settings. Behind a firewall that drops packets, it never answers.
pub(super) const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

/// True for a queue that requires sessions, which never changes.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequiresSession(bool);

impl Expiring for RequiresSession {
    fn is_gone(&self) -> bool {
        false
    }
}

/// The time after which the settings of a queue are read again: it may have been deleted and created anew.
const PARTITIONED_PERIOD: Duration = Duration::from_secs(3_600);

/// True for a partitioned queue; `None` if its settings could not be read.
#[derive(Debug, Clone, Copy)]
pub(super) struct IsPartitioned {
    answer: Option<bool>,
    asked: Instant,
}

impl Expiring for IsPartitioned {
    fn is_gone(&self) -> bool {
        let period = if self.answer.is_some() { PARTITIONED_PERIOD } else { SETTINGS_PAUSE };
        self.asked.elapsed() >= period
    }
}

impl ServiceBusQueues {
    /// Returns whether a queue may be partitioned: unless its settings, which only the claim Manage shows,
    /// say that it is not.
    pub(super) async fn may_be_partitioned(&self, queue: &QueueName) -> bool {
        let ask = || {
            let (queues, queue, asked) = (self.clone(), queue.clone(), Instant::now());
            async move {
                let described = timeout(DESCRIBE_TIMEOUT, queues.describe(&queue)).await;
                let described = described.ok().and_then(Result::ok).flatten();
                Ok(IsPartitioned { answer: described.map(|found| found.is_partitioned), asked })
            }
        };
        let found = self.partitioned.get(self.links.runtime(), Place::of(queue).queue, ask).await;
        !found.is_ok_and(|found| found.answer == Some(false))
    }

    /// Returns whether a queue requires sessions, which never changes: by its settings or, if they cannot be
    /// read, by attaching a link without a session, because the management API has its own limits and
    /// outages. Without the claim Listen, returns the option of this handle.
    ///
    /// # Errors
    /// If the service cannot be asked. Nothing was changed.
    pub(super) async fn requires_session(
        &self,
        queue: &QueueName,
        operation: Operation,
    ) -> Result<bool, StoreError> {
        // Messages of a dead-letter queue have no sessions.
        if Place::of(queue).is_dead_letters {
            return Ok(false);
        }
        let ask = || {
            let (queues, queue) = (self.clone(), queue.clone());
            async move { queues.find_sessions(&queue).await.map(RequiresSession) }
        };
        match self.sessions.get(self.links.runtime(), queue.as_str(), ask).await {
            // The operation itself reports the missing queue.
            Err(fault) if fault.is_missing_entity() => Ok(false),
            found => found
                .map(|RequiresSession(requires)| requires)
                .map_err(|fault| fault.of_read(operation.as_str(), queue)),
        }
    }

    async fn find_sessions(&self, queue: &QueueName) -> Result<bool, Fault> {
        let mut describing = pin!(self.describe(queue));
        let described = match timeout(DESCRIBE_TIMEOUT, &mut describing).await {
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

    /// Returns whether the service refuses a link without a session.
    async fn probe(&self, queue: &QueueName) -> Result<bool, Fault> {
        match self.receiver(queue).await {
            Err(fault) if fault.is_not_allowed() => Ok(true),
            attached => attached.map(|_| false),
        }
    }

    /// Records that a link without a session was attached. A link to dead letters does not count, because
    /// their queue may require sessions.
    pub(super) fn note_no_sessions(&self, queue: &QueueName) {
        if !Place::of(queue).is_dead_letters {
            self.sessions.set(queue.as_str(), RequiresSession(false));
        }
    }

    /// Makes the next operation find out again whether the queue requires sessions, is partitioned, and has
    /// transactions, because it may have been recreated. Held sessions stay: if the queue was recreated,
    /// their links report that.
    pub(super) fn forget_sessions(&self, queue: &QueueName) {
        self.sessions.invalidate(Place::of(queue).queue);
        self.partitioned.invalidate(Place::of(queue).queue);
        self.facts(queue, |facts| facts.lacks_transactions = false);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    // review 34 c, C6: a process that only lists kept the answer for ever.
    #[tokio::test(start_paused = true)]
    async fn queue_that_was_created_anew_is_asked_again_whether_it_is_partitioned() {
        let of = |answer| IsPartitioned { answer, asked: Instant::now() };
        let (known, unknown) = (of(Some(false)), of(None));
        advance(SETTINGS_PAUSE).await;
        assert!(unknown.is_gone() && !known.is_gone());
        advance(PARTITIONED_PERIOD).await;
        assert!(known.is_gone());
    }
}
