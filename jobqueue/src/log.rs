//! The events of this crate for the subscriber of `tracing`, which may [panic](jobqueue_storage::log).

pub(crate) use jobqueue_storage::log::{LogSpan, guarded};

macro_rules! debug {
    ($($event:tt)*) => { $crate::log::guarded(|| ::tracing::debug!($($event)*)) };
}
macro_rules! error {
    ($($event:tt)*) => { $crate::log::guarded(|| ::tracing::error!($($event)*)) };
}
macro_rules! info {
    ($($event:tt)*) => { $crate::log::guarded(|| ::tracing::info!($($event)*)) };
}
macro_rules! trace {
    ($($event:tt)*) => { $crate::log::guarded(|| ::tracing::trace!($($event)*)) };
}
macro_rules! warn_ {
    ($($event:tt)*) => { $crate::log::guarded(|| ::tracing::warn!($($event)*)) };
}

pub(crate) use {debug, error, info, trace, warn_ as warn};
