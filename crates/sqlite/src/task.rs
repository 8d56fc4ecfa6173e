//! An operation on its way to the writer: its work, its result, and the caller that waits for the answer.

use std::fmt;
use std::time::{Duration, Instant};

use tokio::sync::oneshot;

use super::batch::Batch;
use super::error::{Applied, Cause, Failure};
use super::space::Reserve;
use jobqueue_storage::{Operation, StoreError};

/// A task as the writer sees it, without the type of its answer.
pub(super) trait Work: Send {
    /// Runs the work inside the transaction and stores the answer. May be called again, after a rollback or
    /// for a better answer.
    fn apply(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()>;

    /// Returns whether the stored answer may improve: a get found nothing, and messages may yet arrive in the
    /// same transaction.
    fn is_unmet(&self) -> bool;

    /// Returns whether the work adds messages, blobs or entries.
    fn adds(&self) -> bool;

    /// Sends the stored answer, after the commit.
    fn answer(self: Box<Self>);

    fn fail(self: Box<Self>, cause: &Cause);

    /// Returns for how long another process or transaction has kept the work waiting at `now`: since the
    /// first call, or the first call after the lock was free.
    fn kept_waiting(&mut self, now: Instant) -> Duration;

    fn lock_was_free(&mut self);

    /// Returns the approximate number of bytes that the work writes.
    fn weight(&self) -> usize;

    fn is_abandoned(&self) -> bool;
}

pub(super) struct Task<S, T, F> {
    operation: Operation,
    subject: S,
    weight: usize,
    /// The time at which the lock was first found held by another process or transaction, since it was last
    /// free.
    waits_since: Option<Instant>,
    work: F,
    is_unmet: bool,
    result: Option<Result<T, StoreError>>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<S, T, F> Task<S, T, F> {
    pub(super) fn new(
        operation: Operation,
        subject: S,
        weight: usize,
        work: F,
        reply: oneshot::Sender<Result<T, StoreError>>,
    ) -> Self {
        Self { operation, subject, weight, waits_since: None, work, is_unmet: false, result: None, reply }
    }
}

impl<S, T, F> Work for Task<S, T, F>
where
    S: fmt::Display + Send,
    T: Send,
    F: FnMut(&mut Batch<'_>, &S) -> Applied<T> + Send,
{
    fn apply(&mut self, batch: &mut Batch<'_>) -> rusqlite::Result<()> {
        if self.operation != Operation::Put {
            // Any other operation that reads the messages must find the pending ones.
            batch.insert_pending()?;
        }
        if self.adds() {
            batch.leave(Reserve::All);
        }
        self.result = Some(match (self.work)(batch, &self.subject) {
            Ok(value) => Ok(value),
            Err(Failure::Refused(error)) => Err(error),
            Err(Failure::Sql(error)) => return Err(error),
        });
        self.is_unmet = batch.take_unmet();
        Ok(())
    }

    fn is_unmet(&self) -> bool {
        self.is_unmet
    }

    fn adds(&self) -> bool {
        matches!(
            self.operation,
            Operation::Put | Operation::PutAll | Operation::PutBlob | Operation::AppendJournal
        )
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

    fn kept_waiting(&mut self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.waits_since.get_or_insert(now))
    }

    fn lock_was_free(&mut self) {
        self.waits_since = None;
    }

    fn weight(&self) -> usize {
        self.weight
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Before its first attempt, an operation may have waited long behind other operations of its process.
    #[test]
    fn wait_for_the_lock_begins_when_it_is_first_missed() {
        let (reply, _answer) = oneshot::channel();
        let mut task = Task::new(Operation::Put, "jobs", 1, |_: &mut Batch<'_>, _: &&str| Ok(()), reply);
        let tried = Instant::now() + Duration::from_secs(10);
        assert_eq!(task.kept_waiting(tried), Duration::ZERO);
        assert_eq!(task.kept_waiting(tried + Duration::from_secs(3)), Duration::from_secs(3));
        task.lock_was_free();
        assert_eq!(task.kept_waiting(tried + Duration::from_secs(9)), Duration::ZERO);
    }
}
