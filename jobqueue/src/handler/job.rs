//! The request that passes through tower's layers to the handler.

use std::any::Any;
use std::sync::Arc;

use super::extract::States;
use crate::job::JobInfo;

/// One delivery on its way through tower's layers to its handler.
///
/// A layer may read [`info`](Self::info) and add values with [`insert`](Self::insert). Handlers take such
/// values as [`Extension`](crate::Extension).
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "mails", kind = "mail")] struct Mail { to: String }
/// use jobqueue::{Extension, Job};
/// use tower::util::MapRequestLayer;
///
/// #[derive(Clone)]
/// struct Tenant(String);
///
/// async fn send(_: Mail, Extension(tenant): Extension<Tenant>) -> Result<(), JobError> {
///     assert_eq!(tenant.0, "mails");
///     Ok(())
/// }
///
/// let tenants = MapRequestLayer::new(|mut job: Job| {
///     let tenant = Tenant(job.info().queue.to_string());
///     job.insert(tenant);
///     job
/// });
/// # let storage = Storage::memory();
/// # storage.queue::<Mail>().await?.send(&Mail { to: "ada@example.org".into() }).await?;
/// let report = Worker::builder(storage).handle(send).layer(tenants).build()?.run_until_idle().await?;
/// assert_eq!(report.completed, 1);
/// # Ok(()) }
/// ```
pub struct Job {
    info: Arc<JobInfo>,
    states: Arc<States>,
    context: Arc<dyn Any + Send + Sync>,
    /// At most one value of each type. A linear search is faster than hashing for a few values.
    extensions: Vec<Box<dyn Any + Send + Sync>>,
    message: Option<Box<dyn Any + Send>>,
}

impl Job {
    pub(crate) fn new(
        info: Arc<JobInfo>,
        states: Arc<States>,
        context: Arc<dyn Any + Send + Sync>,
        message: Box<dyn Any + Send>,
    ) -> Self {
        Self { info, states, context, extensions: Vec::new(), message: Some(message) }
    }

    pub(crate) fn context<T: Send + Sync + 'static>(&self) -> Option<Arc<T>> {
        Arc::clone(&self.context).downcast().ok()
    }

    /// Returns the properties of the job besides its message.
    pub fn info(&self) -> &JobInfo {
        &self.info
    }

    /// Returns the worker's shared state.
    pub fn states(&self) -> &States {
        &self.states
    }

    /// Adds a value for this delivery, replacing an earlier value of the same type.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) {
        match self.extensions.iter_mut().find_map(|former| former.downcast_mut::<T>()) {
            Some(former) => *former = value,
            None => self.extensions.push(Box::new(value)),
        }
    }

    /// Returns a value that was added for this delivery.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.extensions.iter().find_map(|value| value.downcast_ref())
    }

    pub(super) fn take_message<M: 'static>(&mut self) -> Option<M> {
        self.message.take()?.downcast().ok().map(|message| *message)
    }
}

jobqueue_storage::debug_fields! {
    /// Does not show the message.
    Job { info }
}
