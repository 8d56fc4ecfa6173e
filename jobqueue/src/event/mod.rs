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
/// [`WorkerBuilder::on_event`](crate::WorkerBuilder::on_event) receives the events of its worker and of the
/// sends that its handlers make. [`Storage::on_event`](crate::Storage::on_event) receives these events for
/// every queue and worker of the storage, plus one event per storage request. No event contains a payload, a
/// receipt or a credential. The [`JobInfo`] in an event contains the key and the headers of the job. Without
/// a listener, no event is created.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Event {
    /// The worker has started polling this queue.
    #[non_exhaustive]
    Listening {
        /// The queue.
        queue: QueueName,
        /// The kinds for which the worker has handlers, including aliases and the kinds of former versions;
        /// empty for a relay, which takes every kind.
        kinds: Vec<String>,
    },
    /// A send of one message, or of all messages in one request, has ended.
    #[non_exhaustive]
    Sent {
        /// The queue.
        queue: QueueName,
        /// The kind of the messages; `None` if no message of the list could be written.
        kind: Option<Arc<str>>,
        /// The number of messages.
        messages: usize,
        /// The number of messages that were not stored, or may not have been.
        failed: usize,
        /// The duration of the send, including waits and retries.
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
        /// The time from the insertion of the message until this delivery, by the storage's clock. It
        /// includes a delay set by the sender, and earlier attempts.
        waited: Duration,
    },
    /// The lease of a message was renewed.
    #[non_exhaustive]
    Renewed {
        /// The queue.
        queue: QueueName,
    },
    /// A renewal failed. It is retried as long as the lease lasts.
    #[non_exhaustive]
    NotRenewed {
        /// The queue.
        queue: QueueName,
        /// The error in one line.
        error: String,
    },
    /// A lease was lost: the handler's token fires, and another worker may get the message. When the
    /// message's time to live ends, the token fires without this event.
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
        /// The job, with the number of its attempt; `None` if the message could not be read as a job.
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
    /// A dead letter was stored, by a worker or by a program that received the message by hand. If the
    /// storage did not answer, the next delivery may emit the event again.
    #[non_exhaustive]
    DeadLettered {
        /// The job; `None` if the message could not be read as a job.
        job: Option<Arc<JobInfo>>,
        /// The queue from which the message came.
        queue: QueueName,
        /// The reason.
        reason: Reason,
    },
    /// A request to a queue failed; the worker retries it later.
    #[non_exhaustive]
    PollFailed {
        /// The queue.
        queue: QueueName,
        /// The error of the storage.
        error: String,
        /// The time until the next attempt.
        retry_in: Duration,
    },
    /// Every job on a queue fails: the worker stops fetching from it for a while.
    #[non_exhaustive]
    CircuitOpened {
        /// The queue.
        queue: QueueName,
        /// The time until the worker tries one message.
        retry_in: Duration,
    },
    /// Jobs on the queue succeed again: the worker fetches from it as before.
    #[non_exhaustive]
    CircuitClosed {
        /// The queue.
        queue: QueueName,
    },
    /// The storage throttled a request. Polling and sending wait; renewals of leases do not. Only listeners
    /// of the storage receive this event.
    #[non_exhaustive]
    Throttled {
        /// The time for which polling and sending wait.
        wait: Duration,
    },
    /// An operation of the storage has ended. Only listeners of the storage receive this event.
    #[non_exhaustive]
    StorageRequest {
        /// The operation: [`Operation::as_str`](crate::storage::Operation::as_str).
        operation: &'static str,
        /// The queue; `None` for operations on blobs and on lists of queues.
        queue: Option<QueueName>,
        /// The number of requests that the storage bills: 1, or the number of messages if each is a request.
        requests: usize,
        /// The duration.
        took: Duration,
        /// The code of the error, such as `throttled`:
        /// [`StoreErrorKind::as_str`](crate::storage::StoreErrorKind::as_str).
        error: Option<&'static str>,
    },
    /// The worker has stopped fetching.
    Stopping,
}

/// The cause of the loss of a lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// The storage reports that another worker has the message, or that the message is gone.
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
