//! Guarded calls to the subscriber of `tracing`. A panic of the subscriber ends nothing: some of the code
//! that logs runs in loops and threads that nothing would restart.
//!
//! The macros of this module take the same arguments as the macros of `tracing`.

use std::future::{Future, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;

#[doc(hidden)]
pub use tracing;
use tracing::Span;

/// Defines a macro for each level. `$d` is the `$` of the inner macro.
macro_rules! levels {
    ($d:tt $($hidden:ident $level:ident)+) => {$(
        /// Emits an event at this level. A panic of the subscriber goes no further.
        #[doc(hidden)]
        #[macro_export]
        macro_rules! $hidden {
            ($d($d event:tt)*) => { $d crate::log::guarded(|| $d crate::log::tracing::$level!($d($d event)*)) };
        }
        #[doc(inline)]
        pub use $hidden as $level;
    )+};
}
levels! { $ __debug debug __error error __info info __trace trace __warn warn }

/// Runs `log`, which calls the subscriber. A panic of the subscriber goes no further.
pub fn guarded(log: impl FnOnce()) {
    drop(catch_unwind(AssertUnwindSafe(log)));
}

/// A span, or none if the subscriber panicked when the span was made.
#[derive(Debug)]
pub struct LogSpan(Option<Span>);

impl LogSpan {
    /// Makes the span.
    pub fn new(make: impl FnOnce() -> Span) -> Self {
        let mut span = Self(None);
        guarded(|| span.0 = Some(make()));
        span
    }

    /// Polls `future` inside the span.
    pub fn run<F: Future>(&self, mut future: Pin<&mut F>) -> impl Future<Output = F::Output> {
        poll_fn(move |cx| {
            let mut entered = None;
            guarded(|| entered = self.0.as_ref().map(Span::enter));
            let polled = future.as_mut().poll(cx);
            guarded(|| drop(entered));
            polled
        })
    }
}

impl Drop for LogSpan {
    fn drop(&mut self) {
        let span = self.0.take();
        guarded(|| drop(span));
    }
}
