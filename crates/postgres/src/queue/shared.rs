//! Runs the operations of several callers in one task.

use std::sync::Arc;

use super::leased;
use super::put::Put;
use crate::arrivals::ArrivalHub;
use crate::database::{Call, Database};
use crate::error;
use crate::held::{HeldUp, held_up};
use crate::receipt::ReceiptUse;
use crate::store::{PutLane, Store};
use jobqueue_storage::runtime::Runtime;
use jobqueue_storage::{Operation, PutMessage, PutOutcome, QueueName, StoreError};

impl Store {
    /// Returns a runner for a task that may outlive this handle.
    pub(super) fn batch_runner(&self) -> BatchRunner {
        BatchRunner {
            database: Arc::clone(&self.database),
            arrivals: Arc::clone(&self.arrivals),
            runtime: self.runtime.clone(),
            held: Arc::clone(&self.held),
        }
    }
}

/// The parts of a store with which a task runs the operations of several callers. The task continues even if
/// all of them give up.
#[derive(Clone)]
pub(super) struct BatchRunner {
    database: Arc<Database>,
    arrivals: Arc<ArrivalHub>,
    runtime: Runtime,
    held: Arc<HeldUp>,
}

impl BatchRunner {
    /// Adds messages and announces them, even if it is unknown whether they are stored.
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

    /// Adds a list as a whole. Returns `None` if another transaction holds up one of its groups.
    pub(super) async fn put_list(
        self,
        queue: QueueName,
        messages: Arc<[PutMessage]>,
        is_patient: bool,
    ) -> Option<Result<Vec<PutOutcome>, StoreError>> {
        let limits = &self.held.limits;
        let lock_limit = if is_patient { &limits.until_next } else { &limits.in_list };
        let put = self.put(Operation::PutAll, &queue, &messages, lock_limit).await;
        (!put.as_ref().is_err_and(error::is_lock_timeout)).then_some(put)
    }

    /// Adds the messages of several callers. Returns the messages if another transaction holds them up.
    pub(super) async fn put_together(
        self,
        queue: QueueName,
        lane: PutLane,
        messages: Vec<PutMessage>,
    ) -> Vec<Result<Result<PutOutcome, PutMessage>, StoreError>> {
        let limits = &self.held.limits;
        let lock_limit = match lane {
            PutLane::WithoutGroup | PutLane::InGroups => &limits.in_list,
            PutLane::InGroup(_) => &limits.alone,
            PutLane::HeldUp(_) => limits.with_permit(&self.held.puts),
        };
        match self.put(Operation::Put, &queue, &messages, lock_limit).await {
            Ok(outcomes) => outcomes.into_iter().map(|outcome| Ok(Ok(outcome))).collect(),
            Err(error) if error::is_lock_timeout(&error) => {
                messages.into_iter().map(|message| Ok(Err(message))).collect()
            }
            Err(error) => error.for_each(messages.len()).map(Err).collect(),
        }
    }

    /// Deletes the messages that no other transaction holds up, and announces the messages that became the
    /// first of their groups. The answer is `None` for a message that is held up.
    async fn delete_free(
        &self,
        operation: Operation,
        queue: &QueueName,
        deletions: &[ReceiptUse],
    ) -> Vec<Option<Result<(), StoreError>>> {
        let call = Call::new(operation, queue);
        let deleted = leased::delete(&self.database, call, queue, deletions, &self.held.limits.in_list).await;
        if deleted.advances {
            self.arrivals.announce(&self.database, &self.runtime, queue);
        }
        deleted.answers
    }

    /// Deletes the messages of several callers. Returns the deletions that another transaction holds up.
    pub(super) async fn delete_together(
        self,
        queue: QueueName,
        deletions: Vec<ReceiptUse>,
    ) -> Vec<Result<Result<(), ReceiptUse>, StoreError>> {
        let answers = self.delete_free(Operation::Delete, &queue, &deletions).await;
        let answer = |(answer, deletion): (Option<Result<(), StoreError>>, _)| match answer {
            Some(answer) => answer.map(Ok),
            None => Ok(Err(deletion)),
        };
        answers.into_iter().zip(deletions).map(answer).collect()
    }

    /// Deletes messages. A message that another transaction holds up gets the error [`held_up`] at once.
    pub(super) async fn delete_all(
        self,
        queue: QueueName,
        deletions: Vec<ReceiptUse>,
    ) -> Vec<Result<(), StoreError>> {
        let answers = self.delete_free(Operation::DeleteAll, &queue, &deletions).await;
        let call = Call::new(Operation::DeleteAll, &queue);
        answers.into_iter().map(|answer| answer.unwrap_or_else(|| Err(held_up(call)))).collect()
    }
}
