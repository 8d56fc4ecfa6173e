//! Converts between the contexts of OpenTelemetry and of jobqueue.

use std::str::FromStr;

use jobqueue::trace::TraceContext;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Returns the context in OpenTelemetry's form.
pub(crate) fn span_context(context: TraceContext, state: Option<&str>, is_remote: bool) -> SpanContext {
    let (trace, span, flags) = context.to_parts();
    // A malformed trace state is dropped, as the W3C recommendation demands.
    let state = state.and_then(|state| TraceState::from_str(state).ok()).unwrap_or_default();
    SpanContext::new(TraceId::from(trace), SpanId::from(span), TraceFlags::new(flags), is_remote, state)
}

/// Returns the context in jobqueue's form, or `None` if it is invalid.
pub(crate) fn trace_context(context: &SpanContext) -> Option<TraceContext> {
    let trace = u128::from_be_bytes(context.trace_id().to_bytes());
    let span = u64::from_be_bytes(context.span_id().to_bytes());
    TraceContext::new(trace, span, context.trace_flags().to_u8())
}
