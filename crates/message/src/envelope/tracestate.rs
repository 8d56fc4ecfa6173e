//! The `tracestate` of a message.

use super::Envelope;

/// The extension attribute for the `tracestate`, from CloudEvents' distributed tracing extension.
pub(super) const TRACESTATE: &str = "tracestate";

/// Sets the `tracestate` of a message that has none.
pub fn keep_state(envelope: &mut Envelope, state: &str) {
    if !envelope.extensions.contains_key(TRACESTATE) {
        // Cannot fail: the name is allowed, and every text can be written.
        drop(envelope.insert_header(TRACESTATE, state));
    }
}

/// Returns the `tracestate` of a message.
pub fn state_of(envelope: &Envelope) -> Option<String> {
    serde_json::from_str(envelope.extensions.get(TRACESTATE)?.get()).ok()
}
