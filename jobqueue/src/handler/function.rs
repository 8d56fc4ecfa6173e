//! Async functions as handlers.

use std::future::Future;

use super::erased::failure;
use super::extract::{ExtractError, FromJob, States};
use super::job::Job;
use super::service::HandlerFuture;
use crate::job::outcome::JobError;
use crate::message::QueueMessage;

/// An async function that runs a job: `async fn(message, extractors…) -> Result<(), JobError>`, with up to
/// eight extractors. The trait is sealed.
///
/// ```
/// # use jobqueue::{Context, JobError, QueueMessage, State}; use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, QueueMessage)]
/// # #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
/// # #[derive(Clone)] struct Mailer;
/// async fn deliver(mail: Mail, ctx: Context, State(mailer): State<Mailer>) -> Result<(), JobError> {
///     println!("attempt {} for {}", ctx.info().attempt, mail.to);
///     Ok(())
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler",
    label = "not an async function of a message",
    note = "a handler is `async fn(message, …) -> Result<(), JobError>`; its message derives `QueueMessage`, and each further argument is `Context`, `JobInfo`, `State<T>` or `Extension<T>` of a `T` that is `Clone`, or implements `FromJob`",
    note = "its future must be `Send`: keep no `Rc`, `RefCell` borrow or `MutexGuard` across an `.await`"
)]
pub trait Handler<Arguments>: Clone + Send + Sync + 'static {
    /// The type of its messages.
    type Message: QueueMessage;

    /// Starts the handler.
    ///
    /// # Errors
    /// [`ExtractError`] for an argument that is not available.
    fn call(
        &self,
        message: Self::Message,
        job: &Job,
        _: sealed::Token,
    ) -> Result<HandlerFuture, ExtractError>;

    /// Checks, when the worker is built, that all arguments will be available.
    ///
    /// # Errors
    /// [`ExtractError`], which names the missing argument and says how to add it.
    fn check(states: &States) -> Result<(), ExtractError>;
}

/// Seals [`Handler`]: other crates cannot name the type.
pub(super) mod sealed {
    #[derive(Debug)]
    pub struct Token;
}

macro_rules! handler {
    ($($argument:ident)*) => {
        #[diagnostic::do_not_recommend]
        impl<F, Fut, M, $($argument,)*> Handler<(M, $($argument,)*)> for F
        where
            F: Fn(M, $($argument,)*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output = Result<(), JobError>> + Send + 'static,
            M: QueueMessage,
            $($argument: FromJob,)*
        {
            type Message = M;

            fn call(&self, message: M, job: &Job, _: sealed::Token) -> Result<HandlerFuture, ExtractError> {
                let _ = job;
                let running = self(message, $($argument::from_job(job)?,)*);
                Ok(Box::pin(async move { running.await.map_err(failure) }))
            }

            fn check(states: &States) -> Result<(), ExtractError> {
                let _ = states;
                $($argument::check(states)?;)*
                Ok(())
            }
        }
    };
}

handler!();
handler!(A);
handler!(A B);
handler!(A B C);
handler!(A B C D);
handler!(A B C D E);
handler!(A B C D E G);
handler!(A B C D E G H);
handler!(A B C D E G H I);
