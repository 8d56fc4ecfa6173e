//! The trace of the job that the current task works on. Messages that the task sends belong to the same trace.

use std::future::Future;

use crate::trace::TraceContext;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Returns the trace of the current task's job, if the task runs one.
pub(crate) fn current() -> Option<TraceContext> {
    CURRENT.try_with(|context| *context).ok()
}

pub(crate) fn scope<F: Future>(context: TraceContext, future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(context, future)
}
