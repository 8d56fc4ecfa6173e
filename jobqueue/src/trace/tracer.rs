//! The interface of a tracing system: it makes spans, and carries their contexts into messages.

use std::time::SystemTime;

use super::TraceContext;
use crate::job::JobInfo;
use jobqueue_storage::QueueName;

/// A tracing system, for example OpenTelemetry (the crate `jobqueue-opentelemetry`). [`Storage::with_tracer`](crate::Storage::with_tracer)
/// sets it.
///
/// With a tracer, a message carries the context of the span in which it was sent, and the handler of its job runs in a span that belongs
/// to the trace of the sender. Without one, the framework itself gives every message a context, and nothing exports spans.
///
/// The methods are called on the tasks that send and run jobs: they must return quickly. A tracer that panics harms no job: the panic is
/// logged, and the step goes on without a span.
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
    /// Starts the span of a step; `None` for no span.
    fn start(&self, step: &Step<'_>) -> Option<Box<dyn Span>>;

    /// Returns whether a worker makes its own span of the crate `tracing` (`process`) besides a span of this tracer that has a
    /// [context](Span::context). The default is no: a bridge from `tracing` to the tracing system would export the step twice.
    fn keeps_log_spans(&self) -> bool {
        false
    }
}

/// A span that a [`Tracer`] has started. If it is dropped without [`end`](Self::end), its step was abandoned.
pub trait Span: Send + Sync {
    /// Returns the context of the span, which messages carry; `None` if the tracing system is switched off.
    fn context(&self) -> Option<TraceContext>;

    /// Returns the `tracestate` that belongs to the context, in its text form; `None` if it is empty.
    fn tracestate(&self) -> Option<String> {
        None
    }

    /// Calls `work` once, with the span as the current one of this thread. A step is a future: this is called for each of its polls.
    fn enter(&self, work: &mut dyn FnMut());

    /// Ends the span. `outcome` is the [code](crate::Outcome::as_str) of a delivery's outcome; `error` is the code of the error if the step
    /// has failed, one of a small number.
    fn end(self: Box<Self>, outcome: Option<&'static str>, error: Option<&'static str>);
}

/// A step in the life of a message. The names are those of OpenTelemetry's messaging conventions.
#[derive(Debug)]
#[non_exhaustive]
pub enum Step<'a> {
    /// One of several messages is written. Its span's context goes into this message.
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
        /// The job's id, if it is a single message. Its span's context goes into this message.
        id: Option<&'a str>,
        /// The number of messages.
        messages: usize,
        /// The contexts of the messages, if they have spans of their own.
        created: &'a [TraceContext],
    },
    /// A request for messages has ended. Its span is started and ended at once.
    #[non_exhaustive]
    Receive {
        /// The queue.
        queue: &'a QueueName,
        /// The time at which the request was sent.
        since: SystemTime,
        /// The number of messages.
        messages: usize,
    },
    /// A handler runs.
    #[non_exhaustive]
    Process {
        /// The job.
        job: &'a JobInfo,
        /// The context of the message; `None` if it has none, or one that is malformed.
        sender: Option<TraceContext>,
        /// The `tracestate` of the message.
        tracestate: Option<&'a str>,
        /// True at the first attempt of a job that was not redriven. Later attempts may run days after the sender's trace has ended.
        is_first: bool,
    },
    /// Messages are deleted, put back or dead-lettered.
    #[non_exhaustive]
    Settle {
        /// The queue.
        queue: &'a QueueName,
        /// The job's id, if it is a single message that could be read.
        id: Option<&'a str>,
        /// The number of messages.
        messages: usize,
        /// The context in which the handler of the single message has run; `None` if it has not run, or for several messages.
        process: Option<TraceContext>,
        /// The contexts of the messages that are settled together, or of a single message that has not run.
        messages_of: &'a [TraceContext],
    },
}
