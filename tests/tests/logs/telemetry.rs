//! All that a run shows at the finest level: each value that is given to `tracing`, as it is, and each
//! exported span.

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::PutMessage;
use jobqueue::{Context, JobError, QueueMessage, Runtime, Storage, Worker};
use jobqueue_opentelemetry::Telemetry;
use jobqueue_tests::log;
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider, SpanData};
use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing_subscriber::layer::{Layer, SubscriberExt as _};

const SECRET: &str = "s3cret-freight";

#[derive(Debug, Clone, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct Order {
    number: u32,
    secret: String,
}

/// Keeps every value as it was given, before anything is escaped.
#[derive(Clone, Default)]
struct Raw(Arc<Mutex<Vec<String>>>);

impl Visit for Raw {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.0.lock().unwrap().push(format!("{field}={value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.lock().unwrap().push(format!("{field}={value:?}"));
    }
}

impl<S: tracing::Subscriber> Layer<S> for Raw {
    fn on_new_span(
        &self,
        attributes: &tracing::span::Attributes<'_>,
        _: &tracing::span::Id,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) {
        attributes.record(&mut self.clone());
    }

    fn on_record(
        &self,
        _: &tracing::span::Id,
        values: &tracing::span::Record<'_>,
        _: tracing_subscriber::layer::Context<'_, S>,
    ) {
        values.record(&mut self.clone());
    }

    fn on_event(&self, event: &tracing::Event<'_>, _: tracing_subscriber::layer::Context<'_, S>) {
        event.record(&mut self.clone());
    }
}

fn texts(spans: &[SpanData]) -> Vec<String> {
    let mut texts = Vec::new();
    for span in spans {
        let events = span.events.iter().flat_map(|event| event.attributes.iter());
        let links = span.links.iter().flat_map(|link| link.attributes.iter());
        let pairs = span.attributes.iter().chain(events).chain(links);
        texts.push(span.name.to_string());
        texts.extend(pairs.map(|pair| format!("{}={}", pair.key, pair.value.as_str())));
    }
    texts
}

/// Sends and runs jobs with hostile ids, keys and headers, a failure, a checkpoint, a large payload, and
/// texts that are no jobs.
async fn run(storage: &Storage) {
    let orders = storage.queue::<Order>().await.unwrap();
    for (number, secret) in [(0, SECRET.to_owned()), (1, SECRET.to_owned()), (2, SECRET.repeat(10_000))] {
        let order = Order { number, secret };
        let request = orders.send(&order).id(format!("id\n\u{1b}[31mFAKE {number}\r\n"));
        let request = request.key(format!("key-{SECRET}\n")).header("tenant", format!("{SECRET}\n"));
        drop(request.source(format!("/source\n{number}")).await.unwrap());
    }
    let queue = "orders".parse().unwrap();
    let strange = r#"{"specversion":"1.0","id":"x\ny","source":"/s\n","type":"strange\nkind","traceparent":"00-\n","data":{}}"#;
    for text in [strange.to_owned(), format!("rubbish\n{SECRET}")] {
        storage.queues().put(&queue, PutMessage::new(text)).await.unwrap();
    }
    let handler = |order: Order, ctx: Context| async move {
        ctx.checkpoint(&format!("{SECRET} progress")).await?;
        match order.number {
            0 if ctx.info().attempt == 1 => Err(JobError::retry("fails\n\u{1b}[31mERROR forged line")),
            1 => Err(JobError::dead_letter("no\r\nERROR forged line")),
            _ => Ok(()),
        }
    };
    let worker = Worker::builder(storage.clone().with_runtime(Runtime::paused()));
    let stop = tokio::time::sleep(Duration::from_secs(90));
    drop(worker.handle(handler).build().unwrap().run_until(stop).await.unwrap());
}

// I20, F114
#[tokio::test(start_paused = true)]
async fn finest_trace_shows_no_payload_and_no_line_of_a_sender() {
    // The process's log is on at every level, so that this thread misses nothing.
    let _log = log::record();
    let raw = Raw::default();
    let _raw = tracing::subscriber::set_default(tracing_subscriber::registry().with(raw.clone()));
    let (exporter, metrics) = (InMemorySpanExporter::default(), InMemoryMetricExporter::default());
    let tracers = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let reader = PeriodicReader::builder(metrics.clone()).build();
    let meters = SdkMeterProvider::builder().with_reader(reader).build();
    let telemetry = Telemetry::builder().tracer_provider(&tracers).meter_provider(&meters).log_spans(true);
    let observed = telemetry.build().observe(Storage::memory());
    run(&observed).await;
    run(&Storage::memory()).await;

    let spans = exporter.get_finished_spans().unwrap();
    assert!(spans.iter().any(|span| span.name == "process orders"), "spans are exported");
    meters.force_flush().unwrap();
    let measured = format!("{:?}", metrics.get_finished_metrics().unwrap());
    assert!(measured.contains("orders") && !measured.contains("FAKE") && !measured.contains(SECRET));
    let shown: Vec<String> = raw.0.lock().unwrap().clone();
    assert!(shown.iter().any(|text| text.contains("dead-lettered")), "the log is on");
    for text in shown.into_iter().chain(texts(&spans)) {
        assert!(!text.contains(SECRET), "a payload, a key or a checkpoint is shown: {text}");
        assert!(
            !text.contains(['\n', '\r', '\u{1b}']),
            "a control character of a sender is shown raw: {text:?}"
        );
    }
}
