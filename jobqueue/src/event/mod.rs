//! The events of workers, queues and storages, and their observers.

mod observers;

use std::sync::Arc;
use std::time::Duration;

use crate::job::JobInfo;
use crate::job::outcome::{Outcome, Reason};
use jobqueue_storage::QueueName;

pub(crate) use observers::Observers;

/// An event in a worker, a queue or a storage, for metrics, tests and dashboards.
///
/// [`WorkerBuilder::on_event`](crate::WorkerBuilder::on_event) receives the events of its worker and of the sends of
/// its handlers. [`Storage::on_event`](crate::Storage::on_event) receives these events for every queue and worker of
/// the storage, plus one event per storage request. No event contains a payload, a receipt or a credential. The
/// [`JobInfo`] in an event contains the key and the headers of the job. Without a listener no event is
/// created.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The worker has started polling this queue.
    #[non_exhaustive]
    Listening {
        /// The queue.
        queue: QueueName,
        /// The kinds for which the worker has handlers, with aliases and those of former versions; none for a relay, which takes every kind.
        kinds: Vec<String>,
    },
    /// A send has ended: of one message, or of as many as one request took.
    #[non_exhaustive]
    Sent {
        /// The queue.
        queue: QueueName,
        /// The kind of the messages; `None` if the list had no message that could be written.
        kind: Option<Arc<str>>,
        /// The number of messages.
        messages: usize,
        /// The number of messages that were not stored, or of which that is unknown.
        failed: usize,
        /// The duration of the send, waiting and repetitions included.
        took: Duration,
        /// The code of the first error, such as `storage`: [`ErrorKind::as_str`](crate::ErrorKind::as_str).
        error: Option<&'static str>,
    },
    /// A request for messages was answered, perhaps with none.
    #[non_exhaustive]
    Received {
        /// The queue.
        queue: QueueName,
        /// The number of messages.
        messages: usize,
        /// The duration of the request.
        took: Duration,
    },
    /// A handler starts.
    #[non_exhaustive]
    Started {
        /// The job.
        job: Arc<JobInfo>,
        /// The time from the insertion of the message until this delivery, by the storage's clock. It includes a delay that the sender has
        /// set, and earlier attempts.
        waited: Duration,
    },
    /// The lease of a message was renewed.
    #[non_exhaustive]
    Renewed {
        /// The queue.
        queue: QueueName,
    },
    /// A renewal failed. It is tried again as long as the lease lasts.
    #[non_exhaustive]
    NotRenewed {
        /// The queue.
        queue: QueueName,
        /// The error in one line.
        error: String,
    },
    /// A lease was lost: the handler's token fires, and another worker may get the message. The end of the message's time to live fires the token
    /// without this event.
    #[non_exhaustive]
    LeaseLost {
        /// The queue.
        queue: QueueName,
        /// The cause.
        cause: LossCause,
    },
    /// A delivery has ended.
    #[non_exhaustive]
    Finished {
        /// The job, with the number of its attempt; `None` if the message could not be read as one.
        job: Option<Arc<JobInfo>>,
        /// The queue.
        queue: QueueName,
        /// The outcome.
        outcome: Outcome,
        /// The time that the handler ran; zero if it did not.
        ran: Duration,
        /// The time from the insertion of the message until this delivery, by the storage's clock.
        waited: Duration,
        /// The error in one line, if there was one.
        error: Option<String>,
    },
    /// A dead letter was stored, by a worker or by a program that received the message by hand. If the storage did not answer, the event may come again
    /// with the next delivery.
    #[non_exhaustive]
    DeadLettered {
        /// The job; `None` if the message could not be read as one.
        job: Option<Arc<JobInfo>>,
        /// The queue from which the message came.
        queue: QueueName,
        /// The reason.
        reason: Reason,
    },
    /// A request to a queue failed; the worker tries again later.
    #[non_exhaustive]
    PollFailed {
        /// The queue.
        queue: QueueName,
        /// The error of the storage.
        error: String,
        /// The time until the next attempt.
        retry_in: Duration,
    },
    /// Every job on a queue fails: the worker fetches nothing from it for a while.
    #[non_exhaustive]
    CircuitOpened {
        /// The queue.
        queue: QueueName,
        /// The time until one message is tried.
        retry_in: Duration,
    },
    /// Jobs on the queue succeed again: the worker fetches from it as before.
    #[non_exhaustive]
    CircuitClosed {
        /// The queue.
        queue: QueueName,
    },
    /// The storage throttled a request. Polling and sending wait; renewals of leases do not. Sent to listeners of the storage
    /// only.
    #[non_exhaustive]
    Throttled {
        /// The time for which they wait.
        wait: Duration,
    },
    /// An operation of the storage has ended. Sent to listeners of the storage only.
    #[non_exhaustive]
    StorageRequest {
        /// The operation: [`Operation::as_str`](crate::storage::Operation::as_str).
        operation: &'static str,
        /// The queue; `None` for operations on blobs and on lists of queues.
        queue: Option<QueueName>,
        /// The number of requests that the storage bills: 1, or the number of messages where each is a request.
        requests: usize,
        /// The duration.
        took: Duration,
        /// The code of the error, such as `throttled`: [`StoreErrorKind::as_str`](crate::storage::StoreErrorKind::as_str).
        error: Option<&'static str>,
    },
    /// The worker has stopped fetching.
    Stopping,
}

/// The cause of the loss of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// The storage says that another worker has the message, or that it is gone.
    Taken,
    /// No renewal succeeded in time.
    Expired,
}

impl LossCause {
    /// Returns the code: `taken` or `expired`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Expired => "expired",
        }
    }
}
