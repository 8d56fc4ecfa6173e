//! The `tracestate` of a message.

use super::Envelope;

/// The extension attribute with the `tracestate`, as CloudEvents' extension for distributed tracing names it.
pub(super) const TRACESTATE: &str = "tracestate";

/// Writes the `tracestate` into a message, unless it has one.
pub fn keep_state(envelope: &mut Envelope, state: &str) {
    if !envelope.extensions.contains_key(TRACESTATE) {
        // The name is allowed, and every text can be written.
        drop(envelope.insert_header(TRACESTATE, state));
    }
}

/// Returns the `tracestate` of a message.
pub fn state_of(envelope: &Envelope) -> Option<String> {
    serde_json::from_str(envelope.extensions.get(TRACESTATE)?.get()).ok()
}
