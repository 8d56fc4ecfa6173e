//! The events that a worker reports.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crate::job::JobInfo;
use crate::job::outcome::Outcome;
use crate::name::QueueName;

/// An event in a worker, for metrics, tests and dashboards.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The worker has started polling this queue.
    Listening {
        /// The queue.
        queue: QueueName,
    },
    /// A handler starts.
    Started {
        /// The job.
        job: Arc<JobInfo>,
    },
    /// A delivery has ended.
    Finished {
        /// The job; `None` if the message could not be read as one.
        job: Option<Arc<JobInfo>>,
        /// The queue.
        queue: QueueName,
        /// The outcome.
        outcome: Outcome,
        /// The time that the handler ran.
        ran: Duration,
        /// The error in one line, if there was one.
        error: Option<String>,
    },
    /// A request to a queue failed; the worker tries again later.
    PollFailed {
        /// The queue.
        queue: QueueName,
        /// The error of the storage.
        error: String,
        /// The time until the next attempt.
        retry_in: Duration,
    },
    /// Every job on a queue fails: the worker fetches nothing from it for a while.
    CircuitOpened {
        /// The queue.
        queue: QueueName,
        /// The time until one message is tried.
        retry_in: Duration,
    },
    /// Jobs on the queue succeed again: the worker fetches from it as before.
    CircuitClosed {
        /// The queue.
        queue: QueueName,
    },
    /// The worker has stopped fetching.
    Stopping,
}

type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

#[derive(Default, Clone)]
pub(super) struct Events(Vec<Listener>);

impl Events {
    pub(super) fn add(&mut self, listener: impl Fn(&Event) + Send + Sync + 'static) {
        self.0.push(Arc::new(listener));
    }

    /// Calls all listeners. Builds the event only if there is one.
    pub(super) fn tell(&self, event: impl FnOnce() -> Event) {
        if self.0.is_empty() {
            return;
        }
        let event = event();
        for listener in &self.0 {
            // A listener must not stop the worker.
            if catch_unwind(AssertUnwindSafe(|| listener(&event))).is_err() {
                tracing::error!("an event listener panicked; the worker continues");
            }
        }
    }
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Events({})", self.0.len())
    }
}
