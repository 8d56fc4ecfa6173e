//! Extractors: the arguments of a handler besides its message.

use std::any::{Any, TypeId, type_name};
use std::collections::HashMap;
use std::fmt;

use super::job::Job;
use crate::job::JobInfo;

/// A type that a handler can take as an argument after its message.
///
/// The library provides [`Context`](crate::Context), [`State`], [`Extension`] and [`JobInfo`]. Implement the
/// trait for values that your handlers often need.
///
/// ```
/// use jobqueue::handler::{ExtractError, FromJob};
/// use jobqueue::Job;
///
/// struct Tenant(String);
///
/// impl FromJob for Tenant {
///     fn from_job(job: &Job) -> Result<Self, ExtractError> {
///         let tenant = job.info().headers.get("tenant").cloned();
///         tenant.map(Tenant).ok_or_else(|| ExtractError::new("the message has no header `tenant`"))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler",
    label = "this type is neither the message nor an extractor",
    note = "a handler takes its message first, then `Context`, `State<T>`, `Extension<T>`, `JobInfo` or a type that implements `FromJob`"
)]
pub trait FromJob: Sized {
    /// Extracts the value from the job.
    ///
    /// # Errors
    /// [`ExtractError`] if the job does not have the value. The delivery then counts as a failed attempt.
    fn from_job(job: &Job) -> Result<Self, ExtractError>;

    /// Checks, when the worker is built, that the value will be available.
    ///
    /// # Errors
    /// [`ExtractError`], which names the missing value and says how to add it.
    fn check(states: &States) -> Result<(), ExtractError> {
        let _ = states;
        Ok(())
    }
}

/// The reason why a handler's argument is not available.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ExtractError(String);

impl ExtractError {
    /// Returns an error with this text, which should name the remedy.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }
}

/// Values that all handlers of a worker share, at most one of each type.
#[derive(Default)]
pub struct States(HashMap<TypeId, Box<dyn Any + Send + Sync>>);

impl States {
    pub(crate) fn insert<T: Send + Sync + 'static>(&mut self, state: T) -> bool {
        self.0.insert(TypeId::of::<T>(), Box::new(state)).is_some()
    }

    /// Returns the shared value of a type.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

impl fmt::Debug for States {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "States({})", self.0.len())
    }
}

/// A value that all handlers of the worker share. Set it with [`state`](crate::WorkerBuilder::state) on the
/// builder. It is cloned for each delivery, so put large values into an `Arc`.
///
/// `build` fails if a handler takes a state that was not set.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
/// use std::sync::Arc;
/// use jobqueue::State;
///
/// struct Mailer { host: String }
///
/// async fn send(mail: Mail, State(mailer): State<Arc<Mailer>>) -> Result<(), JobError> {
///     println!("{} by {}", mail.to, mailer.host);
///     Ok(())
/// }
///
/// let mailer = Arc::new(Mailer { host: "smtp.example.org".into() });
/// # let storage = Storage::memory();
/// # storage.queue::<Mail>().await?.send(&Mail { to: "ada@example.org".into() }).await?;
/// let report = Worker::builder(storage).state(mailer).handle(send).build()?.run_until_idle().await?;
/// assert_eq!(report.completed, 1);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct State<T>(pub T);

impl<T: Clone + Send + Sync + 'static> FromJob for State<T> {
    fn from_job(job: &Job) -> Result<Self, ExtractError> {
        job.states().get::<T>().cloned().map(State).ok_or_else(missing_state::<T>)
    }

    fn check(states: &States) -> Result<(), ExtractError> {
        states.get::<T>().map(drop).ok_or_else(missing_state::<T>)
    }
}

fn missing_state<T>() -> ExtractError {
    let name = type_name::<T>();
    ExtractError::new(format!("no state of type `{name}` is set; call `.state(…)` on the worker's builder"))
}

/// A value that a layer has added to this delivery with [`Job::insert`].
///
/// A delivery without the value fails, which counts as an attempt. See [`Job`] for an example.
#[derive(Debug, Clone, Copy)]
pub struct Extension<T>(pub T);

impl<T: Clone + Send + Sync + 'static> FromJob for Extension<T> {
    fn from_job(job: &Job) -> Result<Self, ExtractError> {
        job.get::<T>().cloned().map(Extension).ok_or_else(|| {
            ExtractError::new(format!(
                "no layer has added a `{}` to the job; add the layer to the worker's builder",
                type_name::<T>()
            ))
        })
    }
}

impl FromJob for JobInfo {
    fn from_job(job: &Job) -> Result<Self, ExtractError> {
        Ok(job.info().clone())
    }
}
