//! The trace of the job that the current task works on. Messages that the task sends belong to the same trace.

use std::future::Future;

use crate::envelope::Envelope;
use crate::trace::TraceContext;

tokio::task_local! {
    static CURRENT: TraceContext;
}

/// Returns the trace of the current task's job, if the task runs one.
pub(crate) fn current() -> Option<TraceContext> {
    CURRENT.try_with(|context| *context).ok()
}

/// Runs a future as part of a trace.
pub(crate) fn scope<F: Future>(context: TraceContext, future: F) -> impl Future<Output = F::Output> {
    CURRENT.scope(context, future)
}

/// The extension attribute with the `tracestate`, as CloudEvents' extension for distributed tracing names it.
const STATE: &str = "tracestate";

/// Writes the `tracestate` into a message, unless it has one.
pub(super) fn keep_state(envelope: &mut Envelope, state: &str) {
    if !envelope.extensions.contains_key(STATE) {
        // The name is allowed, and every text can be written.
        drop(envelope.insert_header(STATE, state));
    }
}

/// Returns the `tracestate` of a message.
pub(crate) fn state_of(envelope: &Envelope) -> Option<String> {
    serde_json::from_str(envelope.extensions.get(STATE)?.get()).ok()
}
