//! A job as the function of several jobs gets it.

use std::sync::Arc;

use super::collector::Chunk;
use crate::delivery::Context;
use crate::job::JobError;

/// One of the jobs of a call. See [`WorkerBuilder::handle_many`](crate::WorkerBuilder::handle_many).
///
/// To complete the jobs in the transaction that writes their rows, call [`complete_in_sqlite` or
/// `complete_in_postgres`](crate::guide::handlers#several-jobs-in-one-call) of each `context` before the commit.
pub struct ChunkJob<M> {
    /// The message.
    pub message: M,
    /// The delivery of this job: its attempt, its token, its checkpoints.
    pub context: Context,
    pub(super) chunk: Arc<Chunk<M>>,
    pub(super) number: usize,
}

impl<M> ChunkJob<M> {
    /// Completes this job now, whatever the function returns: call it when the effect of the job is durable, such as after a commit. When every
    /// job has its verdict, the future of the function is dropped at its next `.await`. Without effect if the job has ended, for instance because its lease
    /// is lost.
    pub fn complete(self) {
        self.chunk.end_one(self.number, Ok(()));
    }

    /// Ends this job now with an error, whatever the function returns. The error counts as the result of an ordinary handler. Without
    /// effect if the job has ended.
    pub fn fail(self, error: impl Into<JobError>) {
        self.chunk.end_one(self.number, Err(error.into()));
    }
}

jobqueue_storage::debug_fields! {
    /// Does not show the message.
    ChunkJob<M> { context }
}
