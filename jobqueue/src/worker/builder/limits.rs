//! The builder's limits of queues and handlers.

use super::WorkerBuilder;
use crate::message::QueueMessage;
use crate::worker::limits::{HandlerLimits, QueueLimits};

impl WorkerBuilder {
    /// Limits a queue within this worker: its concurrency, and its weight among the worker's queues.
    ///
    /// Without limits all queues have the same weight. A quarter of the slots of
    /// [`concurrency`](Self::concurrency) is reserved: the queues divide it by weight, and each queue has at
    /// least one slot. A queue whose jobs run for hours cannot take the reserved slots of another queue. The
    /// other slots go to the queues that have work. If several queues have work, the next slot goes to the
    /// queue with the fewest running jobs relative to its weight. A worker with fewer slots than queues
    /// reserves none. The worker fetches only messages that may begin immediately. Weights divide slots, and
    /// the concurrency of a kind among the queues that have a handler of this kind only, but not the rate of
    /// a [`RateLimit`](crate::worker::RateLimit) that queues share.
    ///
    /// With few slots for each queue, more than a quarter is reserved. Of the 8 slots of a worker with 6
    /// queues, 6 are reserved, one for each queue, and 2 are common: a queue runs at most 3 jobs at once, and
    /// `concurrency(4)` does not change that. [`build`](Self::build) logs a warning for such a limit.
    ///
    /// ```
    /// # use jobqueue::{JobError, QueueMessage, Storage, Worker}; use serde::{Deserialize, Serialize};
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "mails", kind = "mail")] struct Mail {}
    /// # #[derive(Serialize, Deserialize, QueueMessage)]
    /// # #[message(queue = "videos", kind = "video")] struct Video {}
    /// # async fn mail(_: Mail) -> Result<(), JobError> { Ok(()) }
    /// # async fn video(_: Video) -> Result<(), JobError> { Ok(()) }
    /// use jobqueue::worker::QueueLimits;
    ///
    /// let worker = Worker::builder(Storage::memory())
    ///     .handle(mail)
    ///     .handle(video)
    ///     .limit_queue("videos", QueueLimits::new().concurrency(2))
    ///     .limit_queue("mails", QueueLimits::new().weight(3))
    ///     .build()?;
    /// # drop(worker); Ok::<(), jobqueue::Error>(())
    /// ```
    pub fn limit_queue(mut self, queue: impl Into<String>, limits: QueueLimits) -> Self {
        self.options.limits.queues.insert(queue.into(), limits);
        self
    }

    /// Limits the handler of `M` within this worker: how many of its jobs run at the same time, and how often
    /// they begin.
    ///
    /// A worker cannot know the kind of a message before it has fetched the message. From a queue of one
    /// kind, the worker fetches only messages that may run. If several kinds with different limits share a
    /// queue, the worker puts a message whose kind may not run now back for a second or two, or until the
    /// rate allows the job. That costs no attempt, but requests to the storage: give a kind with a tight
    /// limit its own queue. If queues of one kind and queues of several kinds share a limit, a message that
    /// was put back gets the next free place, which is reserved for it for up to five seconds.
    pub fn limit<M: QueueMessage>(mut self, limits: HandlerLimits) -> Self {
        self.options.limits.handlers.insert(M::KIND, limits);
        self
    }
}
