//! Starts the spans of the steps of a message.

use std::sync::Arc;

use jobqueue::trace::{Span, Step, TraceContext, Tracer};
use jobqueue::{JobInfo, QueueName};
use opentelemetry::trace::{Link, SpanBuilder, SpanKind, TraceContextExt};
use opentelemetry::{Context, KeyValue, StringValue};

use crate::attributes::{destination, plain, plain_shared};
use crate::contexts::span_context;
use crate::conventions as names;
use crate::shared::Observed;
use crate::span::{JobSpan, Measured, Received};

/// The maximum number of links of a span, which is the default limit of the SDK.
const MAX_LINKS: usize = 128;

/// Starts the spans of one storage.
pub(crate) struct JobTracer {
    observed: Arc<Observed>,
}

impl JobTracer {
    pub(crate) fn new(observed: Arc<Observed>) -> Self {
        Self { observed }
    }

    /// Starts a span, or only its measurement if no spans are made.
    fn span(&self, operation: &'static str, queue: &QueueName, shape: impl FnOnce() -> Shape) -> JobSpan {
        let context = self.observed.shared.tracer.as_ref().map(|tracer| {
            let Shape { kind, parent, links, id, messages, more } = shape();
            let mut attributes = Vec::with_capacity(12);
            attributes.extend(self.observed.storage.iter());
            attributes.push(destination(queue));
            attributes.push(KeyValue::new(names::OPERATION_NAME, operation));
            attributes.push(KeyValue::new(names::OPERATION_TYPE, operation));
            attributes.extend(id.map(|id| KeyValue::new(names::MESSAGE_ID, id)));
            if messages != 1 {
                attributes.push(KeyValue::new(names::MESSAGE_COUNT, messages as i64));
            }
            attributes.extend(more.into_iter().flatten());
            let mut builder =
                SpanBuilder::from_name([operation, " ", queue.as_str()].concat()).with_kind(kind);
            builder.attributes = Some(attributes);
            builder.links = (!links.is_empty()).then_some(links);
            let parent = parent.unwrap_or_else(Context::current);
            let span = builder.start_with_context(tracer, &parent);
            parent.with_span(span)
        });
        JobSpan::new(Arc::clone(&self.observed), operation, queue, context)
    }

    fn send(
        &self,
        queue: &QueueName,
        id: Option<&str>,
        messages: usize,
        created: &[TraceContext],
    ) -> JobSpan {
        // A single message carries the context of this span. Messages of a list carry the contexts of their
        // own spans, which are linked.
        let kind = if id.is_some() { SpanKind::Producer } else { SpanKind::Client };
        let shape = || Shape { id: id.map(plain), messages, links: links(created), ..Shape::of(kind) };
        self.span(names::SEND, queue, shape).measuring(Measured::Operation)
    }

    fn process(
        &self,
        job: &JobInfo,
        sender: Option<(TraceContext, Option<&str>)>,
        is_first: bool,
    ) -> JobSpan {
        let cell = self.observed.cells.own(&job.queue, &job.kind);
        let shape = || {
            let sender = sender.map(|(context, state)| span_context(context, state, true));
            let is_child = is_first && !self.observed.shared.options.always_linked;
            // Ignores the current context: if the worker was started in a span, that span is not the job's
            // parent.
            let (parent, links) = match sender {
                Some(sender) if is_child => (Context::new().with_remote_span_context(sender), Vec::new()),
                Some(sender) => (Context::new(), vec![Link::with_context(sender)]),
                None => (Context::new(), Vec::new()),
            };
            Shape {
                parent: Some(parent),
                links,
                id: Some(plain_shared(&job.id)),
                more: [Some(cell.kind()), Some(KeyValue::new(names::ATTEMPT, i64::from(job.attempt)))],
                ..Shape::of(SpanKind::Consumer)
            }
        };
        let span = self.span(names::PROCESS, &job.queue, shape).measuring(Measured::Process);
        span.in_flight(cell)
    }
}

/// The properties of a span other than its operation and queue.
struct Shape {
    kind: SpanKind,
    /// The parent, or `None` for the current context.
    parent: Option<Context>,
    links: Vec<Link>,
    /// The id, for a single message.
    id: Option<StringValue>,
    messages: usize,
    more: [Option<KeyValue>; 2],
}

impl Shape {
    fn of(kind: SpanKind) -> Self {
        Self { kind, parent: None, links: Vec::new(), id: None, messages: 1, more: [None, None] }
    }
}

fn settled(id: Option<&str>, messages: usize, process: Option<TraceContext>, of: &[TraceContext]) -> Shape {
    let parent =
        process.map(|process| Context::new().with_remote_span_context(span_context(process, None, false)));
    Shape {
        parent: Some(parent.unwrap_or_default()),
        links: links(of),
        id: id.map(plain),
        messages,
        ..Shape::of(SpanKind::Client)
    }
}

fn links(contexts: &[TraceContext]) -> Vec<Link> {
    let link = |context: &TraceContext| Link::with_context(span_context(*context, None, false));
    contexts.iter().take(MAX_LINKS).map(link).collect()
}

impl Tracer for JobTracer {
    fn start(&self, step: &Step<'_>) -> Option<Box<dyn Span>> {
        let span = match *step {
            Step::Create { queue, id, .. } => {
                let shape = || Shape { id: Some(plain(id)), ..Shape::of(SpanKind::Producer) };
                self.span(names::CREATE, queue, shape)
            }
            Step::Send { queue, id, messages, created, .. } => self.send(queue, id, messages, created),
            Step::Receive { queue, since, took, messages, .. } => {
                let received = Received { since, took, messages };
                JobSpan::received(Arc::clone(&self.observed), queue, received)
            }
            Step::Process { job, sender, tracestate, is_first, .. } => {
                self.process(job, sender.map(|sender| (sender, tracestate)), is_first)
            }
            Step::Settle { queue, id, messages, process, messages_of, .. } => {
                let shape = || settled(id, messages, process, messages_of);
                self.span(names::SETTLE, queue, shape).measuring(Measured::Operation)
            }
            _ => return None,
        };
        Some(Box::new(span))
    }

    fn keeps_log_spans(&self) -> bool {
        self.observed.shared.options.log_spans
    }
}
