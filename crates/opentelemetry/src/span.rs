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
use crate::shared::Observed;

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
    observed: Arc<Observed>,
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
        observed: Arc<Observed>,
        operation: &'static str,
        queue: &QueueName,
        context: Option<Context>,
    ) -> Self {
        let (queue, began) = (queue.clone(), Instant::now());
        Self {
            observed,
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
    pub(crate) fn received(observed: Arc<Observed>, queue: &QueueName, received: Received) -> Self {
        let span = Self::new(observed, names::RECEIVE, queue, None);
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
        let shared = &self.observed.shared;
        let is_wanted = shared.options.receive_spans && (messages > 0 || error.is_some());
        let Some(tracer) = shared.tracer.as_ref().filter(|_| is_wanted) else { return };
        let mut builder = SpanBuilder::from_name(format!("{} {}", names::RECEIVE, self.queue))
            .with_kind(SpanKind::Client)
            .with_start_time(since);
        let others = [
            destination(&self.queue),
            KeyValue::new(names::OPERATION_NAME, names::RECEIVE),
            KeyValue::new(names::OPERATION_TYPE, names::RECEIVE),
            KeyValue::new(names::MESSAGE_COUNT, messages as i64),
        ];
        builder.attributes = Some(self.observed.storage.iter().chain(others).collect());
        let parent = Context::current();
        self.context = Some(parent.with_span(builder.start_with_context(tracer, &parent)));
    }

    fn measure(&self, error: Option<&'static str>) {
        let histogram = match self.measures {
            Measured::None => return,
            Measured::Process => &self.observed.shared.instruments.process_duration,
            Measured::Operation => &self.observed.shared.instruments.operation_duration,
        };
        let took = self.received.map_or_else(|| self.began.elapsed(), |received| received.took);
        let is_operation = self.measures == Measured::Operation;
        let kind = is_operation.then(|| KeyValue::new(names::OPERATION_TYPE, self.operation));
        let others = [KeyValue::new(names::OPERATION_NAME, self.operation)];
        let others = others.into_iter().chain(kind).chain(error.map(error_type));
        histogram.record(took.as_secs_f64(), &self.observed.storage.with_queue(&self.queue, others));
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
