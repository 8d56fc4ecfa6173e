//! An operation on its way to the writer: its work, its result, and the caller that waits for the answer.

use std::time::Instant;

use tokio::sync::oneshot;

use super::batch::Batch;
use super::error::{Applied, Cause, Failure, Subject};
use jobqueue_storage::{Operation, StoreError};

/// A task whose answer's type the writer need not know.
pub(super) trait Work: Send {
    /// Runs the work inside the transaction and keeps the answer. It may be called again after a rollback.
    fn apply(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()>;

    /// Returns whether the kept answer may become better: a get that found nothing, before messages arrived in the same transaction.
    fn is_unmet(&self) -> bool;

    /// Sends the kept answer, after the commit.
    fn answer(self: Box<Self>);

    /// Sends an error instead.
    fn fail(self: Box<Self>, cause: &Cause);

    fn since(&self) -> Instant;

    /// Returns the approximate number of bytes that the work writes.
    fn weight(&self) -> usize;

    /// Returns whether the caller has dropped its receiver.
    fn is_abandoned(&self) -> bool;
}

/// The work of a task, and which of its results may become better when messages arrive.
pub(super) struct Effort<T, F> {
    work: F,
    is_unmet: fn(&T) -> bool,
}

impl<T, F> Effort<T, F> {
    /// Returns work whose every result is final.
    pub(super) fn once(work: F) -> Self {
        Self { work, is_unmet: |_| false }
    }

    /// Returns work that is done again when messages arrive in its transaction, while `is_unmet` is true of its result.
    pub(super) fn until_met(work: F, is_unmet: fn(&T) -> bool) -> Self {
        Self { work, is_unmet }
    }
}

/// A task whose result is a `T`.
pub(super) struct Task<T, F> {
    operation: Operation,
    subject: Subject,
    weight: usize,
    since: Instant,
    work: F,
    /// Tells a result that may become better when messages arrive.
    is_unmet: fn(&T) -> bool,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Task<T, F>
where
    T: Send + 'static,
    F: FnMut(&mut Batch<'_>) -> Applied<T> + Send + 'static,
{
    /// Returns a task, and the receiver of its answer.
    pub(super) fn prepare(
        operation: Operation,
        subject: Subject,
        weight: usize,
        work: Effort<T, F>,
    ) -> (Box<dyn Work>, oneshot::Receiver<Result<T, StoreError>>) {
        let (reply, answer) = oneshot::channel();
        let Effort { work, is_unmet } = work;
        let since = Instant::now();
        let task = Self { operation, subject, weight, since, work, is_unmet, result: None, reply };
        (Box::new(task), answer)
    }
}

impl<T, F> Work for Task<T, F>
where
    T: Send,
    F: FnMut(&mut Batch<'_>) -> Applied<T> + Send,
{
    fn apply(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()> {
        if self.operation != Operation::Put {
            // Any other operation that reads the messages has to find the pending ones.
            batch.insert_pending()?;
        }
        self.result = Some(match (self.work)(batch) {
            Ok(value) => Ok(value),
            Err(Failure::Refused(error)) => Err(error),
            Err(Failure::Sql(error)) => return Err(error),
        });
        Ok(())
    }

    fn is_unmet(&self) -> bool {
        matches!(&self.result, Some(Ok(value)) if (self.is_unmet)(value))
    }

    fn answer(self: Box<Self>) {
        if let Some(result) = self.result {
            // A caller that stopped waiting needs no answer.
            let _ = self.reply.send(result);
        }
    }

    fn fail(self: Box<Self>, cause: &Cause) {
        let _ = self.reply.send(Err(cause.error(self.operation.as_str(), &self.subject)));
    }

    fn since(&self) -> Instant {
        self.since
    }

    fn weight(&self) -> usize {
        self.weight
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}
