//! Runs operations of several callers in one task.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::leased;
use super::put::Put;
use crate::arrivals::ArrivalHub;
use crate::combine::runtime_ended;
use crate::database::{Call, Database};
use crate::error;
use crate::held::{self, LockLimits, Patience};
use crate::receipt::Deletion;
use crate::store::{PutLane, Store};
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{Operation, PutMessage, PutOutcome, QueueName, StoreError};

impl Store {
    /// Returns what a task needs that may outlive this handle.
    pub(super) fn shared(&self) -> Shared {
        Shared {
            database: Arc::clone(&self.database),
            arrivals: Arc::clone(&self.arrivals),
            runtime: self.runtime.clone(),
            held_deletions: Arc::clone(&self.held_deletions),
            lock_limits: LockLimits::within(self.database.settings().timeout),
        }
    }
}

/// The parts of a store with which a task runs operations of several callers. It goes on if all of them give up.
#[derive(Clone)]
pub(super) struct Shared {
    database: Arc<Database>,
    arrivals: Arc<ArrivalHub>,
    runtime: Runtime,
    held_deletions: Arc<Semaphore>,
    pub(super) lock_limits: LockLimits,
}

impl Shared {
    /// Adds messages, and announces them, also if it is uncertain whether they are stored.
    async fn put(
        &self,
        operation: Operation,
        queue: &QueueName,
        messages: &[PutMessage],
        lock_limit: &str,
    ) -> Result<Vec<PutOutcome>, StoreError> {
        let put = Put::new(queue, messages, &self.runtime).with_lock_limit(lock_limit);
        let put = put.run(&self.database, Call::new(operation, queue)).await;
        if put.as_ref().err().is_none_or(StoreError::is_ambiguous) {
            self.arrivals.announce(&self.database, &self.runtime, queue);
        }
        put
    }

    /// Adds a list as a whole, or returns `None` if another transaction holds up one of its groups.
    pub(super) async fn put_list(
        self,
        queue: QueueName,
        messages: Arc<[PutMessage]>,
        lock_limit: String,
    ) -> Option<Result<Vec<PutOutcome>, StoreError>> {
        let put = self.put(Operation::PutAll, &queue, &messages, &lock_limit).await;
        (!put.as_ref().is_err_and(error::is_lock_timeout)).then_some(put)
    }

    /// Adds the messages of several callers, or returns them if another transaction holds them up.
    pub(super) async fn put_together(
        self,
        queue: QueueName,
        lane: PutLane,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<Result<PutOutcome, PutMessage>, StoreError>> {
        let lock_limit = match lane {
            PutLane::WithoutGroup | PutLane::InGroups => &self.lock_limits.in_list,
            PutLane::InGroup(_) => &self.lock_limits.briefly,
            PutLane::HeldUp(_) => &self.lock_limits.alone,
        };
        match self.put(Operation::Put, &queue, &messages, lock_limit).await {
            Ok(outcomes) => outcomes.into_iter().map(|outcome| Ok(Ok(outcome))).collect(),
            Err(error) if error::is_lock_timeout(&error) => {
                messages.into_iter().map(|message| Ok(Err(message))).collect()
            }
            Err(error) => error.for_each(messages.len()).map(Err).collect(),
        }
    }

    /// Deletes messages that no other transaction holds up, and announces those that are the first of their groups now. The answer is `None` for
    /// the others.
    async fn delete_free(
        &self,
        operation: Operation,
        queue: &QueueName,
        deletions: &[Deletion],
    ) -> Vec<Option<Result<(), StoreError>>> {
        let deleted = leased::delete(&self.database, Call::new(operation, queue), queue, deletions).await;
        if deleted.advances {
            self.arrivals.announce(&self.database, &self.runtime, queue);
        }
        deleted.answers
    }

    /// Deletes the messages of several callers, and returns those that another transaction holds up.
    pub(super) async fn delete_together(
        self,
        queue: QueueName,
        deletions: Vec<Deletion>,
    ) -> Vec<Result<Result<(), Deletion>, StoreError>> {
        let answers = self.delete_free(Operation::Delete, &queue, &deletions).await;
        let answer = |(answer, deletion): (Option<Result<(), StoreError>>, _)| match answer {
            Some(answer) => answer.map(Ok),
            None => Ok(Err(deletion)),
        };
        answers.into_iter().zip(deletions).map(answer).collect()
    }

    /// Deletes messages. One that another transaction holds up is waited for alone, and for a moment only: the others have their answers soon.
    pub(super) async fn delete_all(
        self,
        queue: QueueName,
        deletions: Vec<Deletion>,
    ) -> Vec<Result<(), StoreError>> {
        let answers = self.delete_free(Operation::DeleteAll, &queue, &deletions).await;
        let try_again = |deletion| {
            let (shared, queue) = (self.clone(), queue.clone());
            let patience = self.lock_limits.for_deletion(Instant::now() + held::IN_LIST);
            self.runtime.spawn(async move {
                shared.delete_alone(Operation::DeleteAll, &queue, deletion, patience).await
            })
        };
        let tried = answers.into_iter().zip(deletions);
        let tried: Vec<_> =
            tried.map(|(answer, deletion)| answer.ok_or_else(|| try_again(deletion))).collect();
        let mut all = Vec::with_capacity(tried.len());
        for answer in tried {
            all.push(match answer {
                Ok(answer) => answer,
                Err(task) => {
                    let call = Call::new(Operation::DeleteAll, &queue);
                    task.await.unwrap_or_else(|_| Err(runtime_ended(call)))
                }
            });
        }
        all
    }

    /// Deletes a message that another transaction holds up.
    pub(super) async fn delete_alone(
        &self,
        operation: Operation,
        queue: &QueueName,
        deletion: Deletion,
        patience: Patience,
    ) -> Result<(), StoreError> {
        let attempt = |lock_limit: String| {
            let (shared, queue) = (self.clone(), queue.clone());
            async move {
                let call = Call::new(operation, &queue);
                let deleted =
                    leased::delete_held(&shared.database, call, &queue, deletion, &lock_limit).await;
                if deleted.advances {
                    shared.arrivals.announce(&shared.database, &shared.runtime, &queue);
                }
                deleted.answer
            }
        };
        let call = Call::new(operation, queue);
        held::alone(&self.runtime, &self.held_deletions, call, patience, attempt).await
    }
}
