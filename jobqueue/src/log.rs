//! The log macros of this crate, which survive a subscriber of `tracing` that
//! [panics](jobqueue_storage::log).

pub(crate) use jobqueue_storage::log::{LogSpan, debug, error, info, trace, warn};
