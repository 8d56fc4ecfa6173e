//! The interface of a tracing system: it makes spans, and carries their contexts into messages.

use std::time::{Duration, SystemTime};

use super::TraceContext;
use crate::job::JobInfo;
use jobqueue_storage::QueueName;

/// A tracing system, for example OpenTelemetry (the crate `jobqueue-opentelemetry`).
/// [`Storage::with_tracer`](crate::Storage::with_tracer) sets it.
///
/// With a tracer, a message carries the context of the span in which it was sent, and its handler runs in a
/// span that belongs to the sender's trace. Without a tracer, the framework gives every message a context,
/// and no spans are exported.
///
/// The methods are called on the tasks that send and run jobs, so they must return quickly. A tracer that
/// panics harms no job: the panic is logged, and the step continues without a span.
///
/// ```
/// use jobqueue::Storage;
/// use jobqueue::trace::{Span, Step, TraceContext, Tracer};
/// use std::sync::Arc;
///
/// /// Counts the handlers that start, and leaves the traces to the framework.
/// #[derive(Debug, Default)]
/// struct Starts(std::sync::atomic::AtomicU64);
///
/// impl Tracer for Starts {
///     fn start(&self, step: &Step<'_>) -> Option<Box<dyn Span>> {
///         if let Step::Process { .. } = step {
///             self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
///         }
///         None
///     }
/// }
///
/// let storage = Storage::memory().with_tracer(Arc::new(Starts::default()));
/// # let _ = storage;
/// ```
pub trait Tracer: Send + Sync + 'static {
    /// Starts the span of a step. Returns `None` for no span.
    fn start(&self, step: &Step<'_>) -> Option<Box<dyn Span>>;

    /// Returns whether a worker creates its own span of the crate `tracing` (`process`) in addition to a span
    /// of this tracer that has a [context](Span::context). The default is no, because a bridge from `tracing`
    /// to the tracing system would export the step twice.
    fn keeps_log_spans(&self) -> bool {
        false
    }
}

/// A span that a [`Tracer`] has started. A span that is dropped without [`end`](Self::end) belongs to an
/// abandoned step.
pub trait Span: Send + Sync {
    /// Returns the context of the span, which messages carry; `None` if the tracing system is switched off.
    fn context(&self) -> Option<TraceContext>;

    /// Returns the `tracestate` that belongs to the context, in its text form; `None` if it is empty.
    fn tracestate(&self) -> Option<String> {
        None
    }

    /// Calls `work` once, with the span as the current span of this thread. A step is a future; this method
    /// is called for each poll.
    fn enter(&self, work: &mut dyn FnMut());

    /// Ends the span. `outcome` is the [code](crate::Outcome::as_str) of a delivery's outcome. `error` is the
    /// code of the error if the step has failed; there are few distinct codes.
    fn end(self: Box<Self>, outcome: Option<&'static str>, error: Option<&'static str>);
}

/// A step in the life of a message. The names are those of OpenTelemetry's messaging conventions.
#[derive(Debug)]
#[non_exhaustive]
pub enum Step<'a> {
    /// One of several messages is written. The message carries the context of this span.
    #[non_exhaustive]
    Create {
        /// The queue.
        queue: &'a QueueName,
        /// The job's id.
        id: &'a str,
    },
    /// Messages are stored.
    #[non_exhaustive]
    Send {
        /// The queue.
        queue: &'a QueueName,
        /// The job's id, for a single message, which carries the context of this span.
        id: Option<&'a str>,
        /// The number of messages.
        messages: usize,
        /// The contexts of the messages, if each has its own span.
        created: &'a [TraceContext],
    },
    /// A request for messages has ended. Its span is started and ended immediately.
    #[non_exhaustive]
    Receive {
        /// The queue.
        queue: &'a QueueName,
        /// The time at which the request was sent, by the wall clock.
        since: SystemTime,
        /// The time that the request took, by a clock that is never set.
        took: Duration,
        /// The number of messages.
        messages: usize,
    },
    /// A handler runs.
    #[non_exhaustive]
    Process {
        /// The job.
        job: &'a JobInfo,
        /// The context of the message; `None` if it is absent or malformed.
        sender: Option<TraceContext>,
        /// The `tracestate` of the message.
        tracestate: Option<&'a str>,
        /// True at the first attempt of a job that was not redriven. Later attempts may run days after the
        /// sender's trace has ended.
        is_first: bool,
    },
    /// Messages are deleted, put back or dead-lettered.
    #[non_exhaustive]
    Settle {
        /// The queue.
        queue: &'a QueueName,
        /// The job's id, for a single message that could be read.
        id: Option<&'a str>,
        /// The number of messages.
        messages: usize,
        /// The context in which the handler of a single message ran; `None` if it did not run, or for several
        /// messages.
        process: Option<TraceContext>,
        /// The contexts of the messages that are settled together, or of a single message whose handler did
        /// not run.
        messages_of: &'a [TraceContext],
    },
}
