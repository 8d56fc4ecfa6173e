//! The events of this crate for the subscriber of `tracing`, which may [panic](jobqueue_storage::log).

pub(crate) use jobqueue_storage::log::{LogSpan, debug, error, info, trace, warn};
