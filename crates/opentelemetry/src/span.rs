//! A started span and its measurement.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use jobqueue::QueueName;
use jobqueue::trace::{Span, TraceContext};
use opentelemetry::trace::{SpanBuilder, SpanKind, Status, TraceContextExt};
use opentelemetry::{Context, KeyValue};
use scopeguard::{ScopeGuard, guard};

use crate::attributes::{destination, error_type};
use crate::cells::Cell;
use crate::contexts::trace_context;
use crate::conventions as names;
use crate::shared::Shared;

/// The histogram of a span's duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measured {
    None,
    Operation,
    Process,
}

/// An ended receive request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Received {
    pub(crate) since: SystemTime,
    pub(crate) took: Duration,
    pub(crate) messages: usize,
}

/// Counts a handler as running until it is dropped with the span, even if the worker is dropped.
type InFlight = ScopeGuard<Arc<Cell>, fn(Arc<Cell>)>;

/// A span of OpenTelemetry, or only its measurement.
pub(crate) struct JobSpan {
    shared: Arc<Shared>,
    system: &'static str,
    operation: &'static str,
    queue: QueueName,
    began: Instant,
    measures: Measured,
    /// The context with the span, or `None` if there is no span.
    context: Option<Context>,
    /// The ended receive request, whose span is made once its result is known.
    received: Option<Received>,
    _in_flight: Option<InFlight>,
}

impl JobSpan {
    pub(crate) fn new(
        shared: Arc<Shared>,
        system: &'static str,
        operation: &'static str,
        queue: &QueueName,
        context: Option<Context>,
    ) -> Self {
        let (queue, began) = (queue.clone(), Instant::now());
        Self {
            shared,
            system,
            operation,
            queue,
            began,
            measures: Measured::None,
            context,
            received: None,
            _in_flight: None,
        }
    }

    /// Returns the measurement of a receive request that has ended. The span is made at the end, and only if
    /// the request returned messages or failed: otherwise an idle worker would export spans all the time.
    pub(crate) fn received(
        shared: Arc<Shared>,
        system: &'static str,
        queue: &QueueName,
        received: Received,
    ) -> Self {
        let span = Self::new(shared, system, names::RECEIVE, queue, None);
        Self { received: Some(received), measures: Measured::Operation, ..span }
    }

    pub(crate) fn measuring(self, measures: Measured) -> Self {
        Self { measures, ..self }
    }

    pub(crate) fn in_flight(self, cell: Arc<Cell>) -> Self {
        cell.add_in_flight(1);
        Self { _in_flight: Some(guard(cell, |cell| cell.add_in_flight(-1))), ..self }
    }

    /// Makes the span of a receive request that has ended.
    fn make_received(&mut self, error: Option<&'static str>) {
        let Some(Received { since, messages, .. }) = self.received else { return };
        let is_wanted = self.shared.options.receive_spans && (messages > 0 || error.is_some());
        let Some(tracer) = self.shared.tracer.as_ref().filter(|_| is_wanted) else { return };
        let mut builder = SpanBuilder::from_name(format!("{} {}", names::RECEIVE, self.queue))
            .with_kind(SpanKind::Client)
            .with_start_time(since);
        builder.attributes = Some(vec![
            KeyValue::new(names::SYSTEM, self.system),
            destination(&self.queue),
            KeyValue::new(names::OPERATION_NAME, names::RECEIVE),
            KeyValue::new(names::OPERATION_TYPE, names::RECEIVE),
            KeyValue::new(names::MESSAGE_COUNT, messages as i64),
        ]);
        let parent = Context::current();
        self.context = Some(parent.with_span(builder.start_with_context(tracer, &parent)));
    }

    fn measure(&self, error: Option<&'static str>) {
        let instruments = &self.shared.instruments;
        let took = self.received.map_or_else(|| self.began.elapsed(), |received| received.took);
        // Stays on the stack, because this runs several times for each job.
        let system = KeyValue::new(names::SYSTEM, self.system);
        let queue = destination(&self.queue);
        let name = KeyValue::new(names::OPERATION_NAME, self.operation);
        let of = KeyValue::new(names::OPERATION_TYPE, self.operation);
        let (seconds, error) = (took.as_secs_f64(), error.map(error_type));
        let (process, operation) = (&instruments.process_duration, &instruments.operation_duration);
        match (self.measures, error) {
            (Measured::None, _) => {}
            (Measured::Process, None) => process.record(seconds, &[system, queue, name]),
            (Measured::Process, Some(error)) => process.record(seconds, &[system, queue, name, error]),
            (Measured::Operation, None) => operation.record(seconds, &[system, queue, name, of]),
            (Measured::Operation, Some(error)) => {
                operation.record(seconds, &[system, queue, name, of, error])
            }
        }
    }
}

impl Span for JobSpan {
    fn context(&self) -> Option<TraceContext> {
        match &self.context {
            Some(context) => trace_context(context.span().span_context()),
            // Without spans, the message belongs to the application's own span.
            None if self.operation == names::SEND || self.operation == names::CREATE => {
                Context::map_current(|current| trace_context(current.span().span_context()))
            }
            None => None,
        }
    }

    fn tracestate(&self) -> Option<String> {
        let state = self.context.as_ref()?.span().span_context().trace_state().header();
        (!state.is_empty()).then_some(state)
    }

    fn enter(&self, work: &mut dyn FnMut()) {
        let _entered = self.context.clone().map(Context::attach);
        work();
    }

    fn end(mut self: Box<Self>, outcome: Option<&'static str>, error: Option<&'static str>) {
        self.make_received(error);
        self.measure(error);
        let Some(context) = &self.context else { return };
        let span = context.span();
        if let Some(outcome) = outcome {
            span.set_attribute(KeyValue::new(names::OUTCOME, outcome));
        }
        if let Some(error) = error {
            span.set_attribute(error_type(error));
            span.set_status(Status::error(""));
        }
        // The wall clock may have been set while the request was on its way.
        match self.received.and_then(|received| received.since.checked_add(received.took)) {
            Some(ended) => span.end_with_timestamp(ended),
            None => span.end(),
        }
    }
}
