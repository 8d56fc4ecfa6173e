//! The application's hooks for dead-lettered jobs.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;

use crate::job::JobInfo;
use crate::job::outcome::Reason;
use crate::storage::QueueName;

/// The maximum time that a hook may run.
const HOOK_TIMEOUT: Duration = Duration::from_secs(30);

/// A message that a worker has moved to the dead-letter queue, without its payload.
///
/// The [`job`](Self::job) has the id, the key and the headers of the message. [`DeadLetters::message`] reads
/// the payload from the dead-letter queue: [the guide](crate::guide::dead_letters#notifications) has an
/// example.
///
/// [`DeadLetters::message`]: crate::dead_letters::DeadLetters::message
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DeadLettered {
    /// The job; `None` if the message could not be read as one.
    pub job: Option<Arc<JobInfo>>,
    /// The queue that the message came from.
    pub queue: QueueName,
    /// The reason for dead-lettering.
    pub reason: Reason,
    /// The error with its causes, in one line.
    pub error: String,
}

type Called = Pin<Box<dyn Future<Output = ()> + Send>>;
type DeadLetterHook = Arc<dyn Fn(DeadLettered) -> Called + Send + Sync>;

/// The hooks of a worker, in the order in which they were added.
#[derive(Default, Clone)]
pub(crate) struct DeadLetterHooks(Vec<DeadLetterHook>);

impl DeadLetterHooks {
    pub(crate) fn add<F>(&mut self, hook: impl Fn(DeadLettered) -> F + Send + Sync + 'static)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        self.0.push(Arc::new(move |dead| Box::pin(hook(dead))));
    }

    /// Calls all hooks, one after the other. Builds the argument only if there is a hook.
    pub(super) async fn call(&self, dead: impl FnOnce() -> DeadLettered) {
        if self.0.is_empty() {
            return;
        }
        let dead = dead();
        for hook in &self.0 {
            // A hook may also panic before its future is created.
            let Ok(called) = catch_unwind(AssertUnwindSafe(|| hook(dead.clone()))) else {
                crate::log::error!(queue = %dead.queue, "a hook for dead letters panicked");
                continue;
            };
            match tokio::time::timeout(HOOK_TIMEOUT, AssertUnwindSafe(called).catch_unwind()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => crate::log::error!(queue = %dead.queue, "a hook for dead letters panicked"),
                Err(_) => {
                    crate::log::error!(queue = %dead.queue, "a hook for dead letters took over {HOOK_TIMEOUT:?}")
                }
            }
        }
    }
}

impl fmt::Debug for DeadLetterHooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeadLetterHooks({})", self.0.len())
    }
}
