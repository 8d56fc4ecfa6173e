//! The trace to which a job belongs, in the form of W3C, and the interface of tracing systems.
//!
//! The framework carries the text form ([W3C Trace Context]). A [`Tracer`] creates spans and exports them;
//! the crate `jobqueue-opentelemetry` has a tracer.
//!
//! [W3C Trace Context]: https://www.w3.org/TR/trace-context/

mod open_span;
mod tracer;

use std::future::Future;

pub use crate::job::TraceContext;
pub(crate) use open_span::OpenSpan;
pub use tracer::{Span, Step, Tracer};

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Returns the trace of the current task's job, if the task runs one. The messages that the task sends belong
/// to the same trace.
pub(crate) fn current() -> Option<TraceContext> {
    CURRENT.try_with(|context| *context).ok()
}

pub(crate) fn scope<F: Future>(context: TraceContext, future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(context, future)
}
