//! Async functions of several jobs as handlers.

use std::future::Future;

use futures_util::future::BoxFuture;

use super::job::ChunkJob;
use crate::handler::{ExtractError, FromJob, Job, State, States};
use crate::job::JobError;
use crate::message::QueueMessage;

/// An async function of several jobs: `async fn(Vec<ChunkJob<M>>, State<T>…) -> Result<(), JobError>`, with
/// up to four [states](State). The trait is sealed. See
/// [`WorkerBuilder::handle_many`](crate::WorkerBuilder::handle_many).
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of several jobs",
    label = "not an async function of `Vec<ChunkJob<M>>`",
    note = "it is `async fn(Vec<ChunkJob<M>>, …) -> Result<(), JobError>`; the message `M` derives `QueueMessage`, and each further argument is `State<T>` of a `T` that is `Clone`",
    note = "its future must be `Send`: keep no `Rc`, `RefCell` borrow or `MutexGuard` across an `.await`"
)]
pub trait ChunkHandler<Arguments>: Send + Sync + 'static {
    /// The type of its messages.
    type Message: QueueMessage;

    /// Starts the handler, with the states that `job` has.
    ///
    /// # Errors
    /// [`ExtractError`] for a state that is not set.
    fn call(
        &self,
        jobs: Vec<ChunkJob<Self::Message>>,
        job: &Job,
        _: sealed::Token,
    ) -> Result<ChunkFuture, ExtractError>;

    /// Checks that all states are set, when the worker is built.
    ///
    /// # Errors
    /// [`ExtractError`], which names the missing state and says how to add it.
    fn check(states: &States) -> Result<(), ExtractError>;
}

pub(super) type ChunkFuture = BoxFuture<'static, Result<(), JobError>>;

/// Seals [`ChunkHandler`]: other crates cannot name the type.
pub(super) mod sealed {
    #[derive(Debug)]
    pub struct Token;
}

macro_rules! chunk_handler {
    ($($state:ident)*) => {
        #[diagnostic::do_not_recommend]
        impl<F, Fut, M, $($state,)*> ChunkHandler<(M, $($state,)*)> for F
        where
            F: Fn(Vec<ChunkJob<M>>, $(State<$state>,)*) -> Fut + Send + Sync + 'static,
            Fut: Future<Output = Result<(), JobError>> + Send + 'static,
            M: QueueMessage,
            $($state: Clone + Send + Sync + 'static,)*
        {
            type Message = M;

            fn call(&self, jobs: Vec<ChunkJob<M>>, job: &Job, _: sealed::Token) -> Result<ChunkFuture, ExtractError> {
                let _ = job;
                Ok(Box::pin(self(jobs, $(State::<$state>::from_job(job)?,)*)))
            }

            fn check(states: &States) -> Result<(), ExtractError> {
                let _ = states;
                $(State::<$state>::check(states)?;)*
                Ok(())
            }
        }
    };
}

chunk_handler!();
chunk_handler!(A);
chunk_handler!(A B);
chunk_handler!(A B C);
chunk_handler!(A B C D);
