//! An optional span, and the protection against a tracer that panics.

use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::task::Poll;

use super::TraceContext;
use super::tracer::{Span, Step, Tracer};

/// The maximum length of a `tracestate` that is kept: the length that W3C Trace Context asks every party to
/// propagate.
const MAX_STATE: usize = 512;

/// A started span, or none. A panic of the tracer is logged and harms nothing but the span.
pub(crate) struct OpenSpan(Option<Box<dyn Span>>);

impl OpenSpan {
    pub(crate) const fn none() -> Self {
        Self(None)
    }

    pub(crate) fn start(tracer: &dyn Tracer, step: &Step<'_>) -> Self {
        Self(guarded(|| tracer.start(step)).flatten())
    }

    pub(crate) const fn is_some(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn context(&self) -> Option<TraceContext> {
        let span = self.0.as_deref()?;
        guarded(|| span.context()).flatten()
    }

    /// Returns the `tracestate` of the span, if a message can carry it.
    pub(crate) fn tracestate(&self) -> Option<String> {
        let span = self.0.as_deref()?;
        let plain = |state: &String| {
            (1..=MAX_STATE).contains(&state.len()) && state.bytes().all(|b| (b' '..=b'~').contains(&b))
        };
        guarded(|| span.tracestate()).flatten().filter(plain)
    }

    pub(crate) fn run<F: Future>(&self, mut future: Pin<&mut F>) -> impl Future<Output = F::Output> {
        std::future::poll_fn(move |cx| {
            let Some(span) = self.0.as_deref() else { return future.as_mut().poll(cx) };
            let mut polled = None;
            let mut work = || {
                // The tracer may call this more than once; the future is polled once.
                if polled.is_none() {
                    polled = Some(catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))));
                }
            };
            guarded(|| span.enter(&mut work));
            // The tracer may not have called it.
            work();
            match polled {
                Some(Ok(poll)) => poll,
                // A panic of the future itself is passed on.
                Some(Err(panic)) => std::panic::resume_unwind(panic),
                None => Poll::Pending,
            }
        })
    }

    pub(crate) fn end(&mut self, outcome: Option<&'static str>, error: Option<&'static str>) {
        if let Some(span) = self.0.take() {
            guarded(|| span.end(outcome, error));
        }
    }
}

impl Drop for OpenSpan {
    fn drop(&mut self) {
        if let Some(span) = self.0.take() {
            guarded(|| drop(span));
        }
    }
}

impl fmt::Debug for OpenSpan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "OpenSpan(some)" } else { "OpenSpan(none)" })
    }
}

/// Calls the tracer. Returns `None` if it panics.
fn guarded<T>(call: impl FnOnce() -> T) -> Option<T> {
    catch_unwind(AssertUnwindSafe(call))
        .inspect_err(|_| crate::log::error!("the tracer panicked; the work continues without its span"))
        .ok()
}
