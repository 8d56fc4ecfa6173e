//! The observers of a storage and its workers: listeners, and a tracer.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::Event;
use crate::trace::{OpenSpan, Step, Tracer};
use jobqueue_storage::{StorageObserver, StorageRequest, StoreErrorKind};

type Listener = Arc<dyn Fn(&Event) + Send + Sync>;

/// The listeners and the tracer that a storage carries to its queues and workers.
#[derive(Default, Clone)]
pub(crate) struct Observers {
    listeners: Vec<Listener>,
    tracer: Option<Arc<dyn Tracer>>,
}

impl Observers {
    pub(crate) fn add(&mut self, listener: impl Fn(&Event) + Send + Sync + 'static) {
        self.listeners.push(Arc::new(listener));
    }

    pub(crate) fn add_all(&mut self, others: Self) {
        self.listeners.extend(others.listeners);
    }

    pub(crate) fn set_tracer(&mut self, tracer: Arc<dyn Tracer>) {
        self.tracer = Some(tracer);
    }

    /// Passes an event to all listeners. Calls `event` only if there is a listener.
    pub(crate) fn emit(&self, event: impl FnOnce() -> Event) {
        if self.listeners.is_empty() {
            return;
        }
        let event = event();
        for listener in &self.listeners {
            // A listener must not stop a worker.
            if catch_unwind(AssertUnwindSafe(|| listener(&event))).is_err() {
                crate::log::error!("an event listener panicked; the work continues");
            }
        }
    }

    /// Starts the span of a step. Calls `step` only if there is a tracer.
    pub(crate) fn span<'a>(&self, step: impl FnOnce() -> Step<'a>) -> OpenSpan {
        match &self.tracer {
            Some(tracer) => OpenSpan::start(&**tracer, &step()),
            None => OpenSpan::none(),
        }
    }

    pub(crate) fn trace(&self) -> bool {
        self.tracer.is_some()
    }

    /// Returns whether workers create their own `tracing` span for a job: always without a tracer, otherwise
    /// as the tracer says.
    pub(crate) fn log_spans(&self) -> bool {
        let ask = |tracer: &Arc<dyn Tracer>| {
            catch_unwind(AssertUnwindSafe(|| tracer.keeps_log_spans())).unwrap_or_default()
        };
        self.tracer.as_ref().is_none_or(ask)
    }
}

impl StorageObserver for Observers {
    fn observe(&self, request: &StorageRequest<'_>) {
        self.emit(|| Event::StorageRequest {
            operation: request.operation.as_str(),
            queue: request.queue.cloned(),
            requests: request.requests,
            took: request.took,
            error: request.error.map(StoreErrorKind::as_str),
        });
        if let Some(wait) = request.throttled {
            self.emit(|| Event::Throttled { wait });
        }
    }
}

impl fmt::Debug for Observers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observers")
            .field("listeners", &self.listeners.len())
            .field("tracer", &self.tracer.is_some())
            .finish()
    }
}
