//! The log macros of this crate, which survive a subscriber of `tracing` that
//! [panics](jobqueue_storage::log).

pub(crate) use jobqueue_storage::log::{LogSpan, debug, error, info, trace, warn};

/// The maximum length of ids and kinds in logs and spans, in characters.
pub(crate) const MAX_ID_CHARS: usize = 1_024;
