//! Calls of the subscriber of `tracing`. A panic of the subscriber ends nothing: some work that is logged runs in loops that nothing would
//! start again.
//!
//! [`debug!`], [`error!`], [`info!`], [`trace!`] and [`warn!`] take what the macros of `tracing` take, and are [`guarded`]. The crate that uses
//! them depends on `tracing`.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;

use tracing::Span;

pub use crate::{__debug as debug, __error as error, __info as info, __trace as trace, __warn as warn};

/// Reports an event of the level DEBUG.
#[doc(hidden)]
#[macro_export]
macro_rules! __debug {
    ($($event:tt)*) => { $crate::log::guarded(|| ::tracing::debug!($($event)*)) };
}

/// Reports an event of the level ERROR.
#[doc(hidden)]
#[macro_export]
macro_rules! __error {
    ($($event:tt)*) => { $crate::log::guarded(|| ::tracing::error!($($event)*)) };
}

/// Reports an event of the level INFO.
#[doc(hidden)]
#[macro_export]
macro_rules! __info {
    ($($event:tt)*) => { $crate::log::guarded(|| ::tracing::info!($($event)*)) };
}

/// Reports an event of the level TRACE.
#[doc(hidden)]
#[macro_export]
macro_rules! __trace {
    ($($event:tt)*) => { $crate::log::guarded(|| ::tracing::trace!($($event)*)) };
}

/// Reports an event of the level WARN.
#[doc(hidden)]
#[macro_export]
macro_rules! __warn {
    ($($event:tt)*) => { $crate::log::guarded(|| ::tracing::warn!($($event)*)) };
}

/// Runs `log`, which calls the subscriber. A panic of the subscriber goes no further.
pub fn guarded(log: impl FnOnce()) {
    drop(catch_unwind(AssertUnwindSafe(log)));
}

/// A span, or none if the subscriber panicked when it was made.
#[derive(Debug)]
pub struct LogSpan(Option<Span>);

impl LogSpan {
    /// Makes the span.
    pub fn new(make: impl FnOnce() -> Span) -> Self {
        let mut span = Self(None);
        guarded(|| span.0 = Some(make()));
        span
    }

    /// Polls `future` inside of the span.
    pub fn run<F: Future>(&self, mut future: Pin<&mut F>) -> impl Future<Output = F::Output> {
        poll_fn(move |cx| {
            let mut entered = None;
            guarded(|| entered = self.0.as_ref().map(Span::enter));
            let polled = future.as_mut().poll(cx);
            guarded(|| drop(entered));
            polled
        })
    }

    /// Records a value in the span.
    pub fn record(&self, field: &'static str, value: &dyn tracing::Value) {
        guarded(|| {
            if let Some(span) = &self.0 {
                span.record(field, value);
            }
        });
    }
}

impl Drop for LogSpan {
    fn drop(&mut self) {
        let span = self.0.take();
        guarded(|| drop(span));
    }
}
