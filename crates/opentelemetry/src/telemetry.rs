//! The telemetry of a process and its options.

use std::sync::Arc;

use jobqueue::{JobInfo, Storage};
use opentelemetry::global::{self, BoxedTracer, ObjectSafeTracerProvider};
use opentelemetry::metrics::{Meter, MeterProvider};
use opentelemetry::trace::TraceContextExt;
use opentelemetry::{Context, InstrumentationScope};

use crate::attributes::StorageAttributes;
use crate::cells::StorageCells;
use crate::contexts::span_context;
use crate::conventions::SCHEMA;
use crate::instruments::Instruments;
use crate::listener::Listener;
use crate::shared::{Observed, Options, Shared};
use crate::tracer::JobTracer;

/// Makes the spans and metrics of storages, queues and workers. Cheap to clone.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use jobqueue::Storage;
/// use jobqueue_opentelemetry::Telemetry;
///
/// // After the application has set its providers (`opentelemetry::global`).
/// let telemetry = Telemetry::new();
/// let storage = telemetry.observe(Storage::connect("memory:").await?);
/// // Queues and workers of `storage` have spans and metrics from here on.
/// # let _ = storage;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Telemetry {
    shared: Arc<Shared>,
}

impl Telemetry {
    /// Returns telemetry with the global providers and the default options. Set the providers first.
    pub fn new() -> Self {
        Self::builder().build()
    }

    /// Returns a builder with the default options.
    pub fn builder() -> TelemetryBuilder {
        TelemetryBuilder::default()
    }

    /// Returns the storage with spans and metrics for its queues and workers. Call this once, before creating
    /// queues and workers from the storage. A storage that is observed twice is measured twice.
    ///
    /// Spans and metrics name the storage by its [description](Storage::description), so that queues of one
    /// name in two storages are two series. The metrics of storages with the same description, such as two in
    /// memory, are summed.
    #[must_use]
    pub fn observe(&self, storage: Storage) -> Storage {
        let attributes = StorageAttributes::of(&storage);
        let cells = self.shared.storages.of(&attributes);
        let observed = Observed { shared: Arc::clone(&self.shared), storage: attributes, cells };
        let observed = Arc::new(observed);
        let tracer = JobTracer::new(Arc::clone(&observed));
        let listener = Listener::new(observed);
        storage.with_tracer(Arc::new(tracer)).on_event(move |event| listener.record(event))
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }
}

/// Returns the trace context of a job: in a handler, the context of its `process` span; for a message that
/// was [received by hand](jobqueue::Queue::receive), a context in the trace of its sender. Use it as the
/// parent of a span, or for a link.
///
/// In a handler, a span without an explicit parent is already a child of `process`. Use this function where
/// the current context is lost, in a thread or task that the handler starts.
///
/// ```
/// # use jobqueue::{JobError, JobInfo, QueueMessage}; use serde::{Deserialize, Serialize};
/// # #[derive(Serialize, Deserialize, QueueMessage)] #[message(queue = "scans", kind = "scan")] struct Scan {}
/// use opentelemetry::global;
/// use opentelemetry::trace::{Span, Tracer};
///
/// async fn scan(_: Scan, job: JobInfo) -> Result<(), JobError> {
///     let parent = jobqueue_opentelemetry::context_of(&job);
///     tokio::task::spawn_blocking(move || {
///         let mut span = global::tracer("scanner").start_with_context("scan pages", &parent);
///         span.end();
///     })
///     .await?;
///     Ok(())
/// }
/// ```
pub fn context_of(job: &JobInfo) -> Context {
    Context::new().with_remote_span_context(span_context(job.trace, None, true))
}

impl Default for Telemetry {
    fn default() -> Self {
        Self::new()
    }
}

jobqueue::__internals::debug_fields! {
    Telemetry { options = shared.options }
}

/// Builds [`Telemetry`].
///
/// ```
/// use jobqueue_opentelemetry::Telemetry;
/// use opentelemetry::trace::noop::NoopTracerProvider;
///
/// let telemetry = Telemetry::builder()
///     .tracer_provider(&NoopTracerProvider::new()) // instead of the global one
///     .receive_spans(false)                        // a busy worker sends many requests
///     .build();
/// # let _ = telemetry;
/// ```
#[must_use = "call `build`"]
pub struct TelemetryBuilder {
    tracer: Option<BoxedTracer>,
    meter: Option<Meter>,
    spans: bool,
    options: Options,
}

impl Default for TelemetryBuilder {
    fn default() -> Self {
        let options = Options { always_linked: false, receive_spans: true, log_spans: false };
        Self { tracer: None, meter: None, spans: true, options }
    }
}

impl TelemetryBuilder {
    jobqueue::__internals::setters! {
        /// Sets the tracer provider to use instead of the global one. The scope of the tracer has the name
        /// and version of this crate, and the schema of the conventions.
        tracer_provider(provider: &impl ObjectSafeTracerProvider) => tracer =
            Some(BoxedTracer::new(provider.boxed_tracer(scope())));

        /// Sets the meter provider to use instead of the global one, which records nothing until the
        /// application sets another. The meter has the same scope as the tracer.
        meter_provider(provider: &impl MeterProvider) => meter = Some(provider.meter_with_scope(scope()));

        /// Sets whether spans are made. The default is yes. Without spans, messages carry the context that is
        /// current at the send.
        spans(make: bool) => spans;

        /// Sets whether every attempt begins its own trace, which links to the sender. The default is no: the
        /// first attempt is a child of the span that sent the message, and later attempts begin their own
        /// traces with a link.
        always_linked(linked: bool) => options.always_linked;

        /// Sets whether receive requests that returned messages or failed have spans. The default is yes.
        receive_spans(make: bool) => options.receive_spans;

        /// Sets whether workers also make their own span of the crate `tracing` around a handler, so that log
        /// lines of the handler show the job. The default is no: with `tracing-opentelemetry`, each job would
        /// be exported twice. If you use that crate and set this, give its layer a filter that leaves out the
        /// target `jobqueue::worker::run`.
        log_spans(keep: bool) => options.log_spans;
    }

    /// Builds the telemetry. Providers that were not given are read from the global ones now, so set the
    /// global providers first.
    pub fn build(self) -> Telemetry {
        let meter = self.meter.unwrap_or_else(|| global::meter_with_scope(scope()));
        let tracer = || self.tracer.unwrap_or_else(|| global::tracer_with_scope(scope()));
        let storages = Arc::new(StorageCells::default());
        let shared = Shared {
            tracer: self.spans.then(tracer),
            instruments: Instruments::new(&meter, &storages),
            meter,
            options: self.options,
            storages,
        };
        Telemetry { shared: Arc::new(shared) }
    }
}

jobqueue::__internals::debug_fields! {
    TelemetryBuilder { options }
}

fn scope() -> InstrumentationScope {
    InstrumentationScope::builder(env!("CARGO_PKG_NAME"))
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(SCHEMA)
        .build()
}
