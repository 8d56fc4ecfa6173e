//! A job as a handler of several jobs receives it.

use std::sync::Arc;

use super::collector::Chunk;
use crate::delivery::Context;
use crate::job::JobError;

/// A job in a call of several jobs. See [`WorkerBuilder::handle_many`](crate::WorkerBuilder::handle_many).
///
/// To complete the jobs in the transaction that writes their rows, call
/// [`complete_in_sqlite` or `complete_in_postgres`](crate::guide::handlers#several-jobs-in-one-call) on each
/// `context` before the commit.
pub struct ChunkJob<M> {
    /// The message.
    pub message: M,
    /// The delivery of this job: its attempt, its token, its checkpoints.
    pub context: Context,
    pub(super) chunk: Arc<Chunk<M>>,
    pub(super) number: usize,
}

impl<M> ChunkJob<M> {
    /// Completes this job now, whatever the function returns. Call it when the effect of the job is durable,
    /// for example after a commit. Once every job has its verdict, the function's future is dropped at its
    /// next `.await`. Has no effect if the job has already ended, for example because its lease is lost.
    pub fn complete(self) {
        self.chunk.end_one(self.number, Ok(()));
    }

    /// Ends this job now with an error, whatever the function returns. The error has the same effect as one
    /// that an ordinary handler returns: that of a send which is refused as invalid dead-letters the job. If
    /// one send for several jobs fails so, return the error from the function instead, which tries each job
    /// alone. Has no effect if the job has already ended.
    pub fn fail(self, error: impl Into<JobError>) {
        self.chunk.end_one(self.number, Err(error.into()));
    }
}

jobqueue_storage::debug_fields! {
    /// Does not show the message.
    ChunkJob<M> { context }
}
