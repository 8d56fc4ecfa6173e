//! Spans and metrics over OTLP into a receiver that is made of OpenTelemetry's Python packages.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use jobqueue::{Context, JobError, Storage, Worker};
use jobqueue_opentelemetry::Telemetry;
use jobqueue_test_support::python::environment;
use opentelemetry_otlp::WithExportConfig as _;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde_json::Value;

use super::{Invoice, Order};

/// A running receiver. It ends when its input is closed.
pub struct Receiver {
    child: Child,
    input: Option<ChildStdin>,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    pub address: String,
}

impl Receiver {
    pub fn start() -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("telemetry");
        let python = environment("telemetry", &folder.join("requirements.txt")).unwrap();
        let mut child = Command::new(python)
            .arg(folder.join("receiver.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let first: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
        let address = format!("http://127.0.0.1:{}", first["port"]);
        Self { input: child.stdin.take(), child, lines, address }
    }

    /// Ends the receiver and returns what it has received.
    pub fn end(mut self) -> Vec<Value> {
        drop(self.input.take());
        let received = self.lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap()).collect();
        assert!(self.child.wait().unwrap().success());
        received
    }
}

/// Returns the only span of a name.
fn span<'a>(received: &'a [Value], name: &str) -> &'a Value {
    let found: Vec<_> = received.iter().filter(|one| one["span"] == name).collect();
    assert_eq!(found.len(), 1, "{name} in {received:#?}");
    found[0]
}

/// Asserts that each of these spans is the parent of the next one.
pub fn assert_path(received: &[Value], path: &[&str]) {
    for pair in path.windows(2) {
        let (parent, child) = (span(received, pair[0]), span(received, pair[1]));
        assert_eq!(child["parent"], parent["id"], "{pair:?}");
        assert_eq!(child["trace"], parent["trace"], "{pair:?}");
    }
}

async fn bill(order: Order, ctx: Context) -> Result<(), JobError> {
    ctx.queue::<Invoice>().await?.send(&Invoice { order: order.number }).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn receiver_in_python_gets_the_trace_and_the_metrics() {
    let receiver = tokio::task::spawn_blocking(Receiver::start).await.unwrap();
    let spans = opentelemetry_otlp::SpanExporter::builder().with_tonic();
    let spans = spans.with_endpoint(&receiver.address).build().unwrap();
    let metrics = opentelemetry_otlp::MetricExporter::builder().with_tonic();
    let metrics = metrics.with_endpoint(&receiver.address).build().unwrap();
    let tracers = SdkTracerProvider::builder().with_batch_exporter(spans).build();
    let meters = SdkMeterProvider::builder().with_reader(PeriodicReader::builder(metrics).build()).build();

    let telemetry = Telemetry::builder().tracer_provider(&tracers).meter_provider(&meters).build();
    let storage = telemetry.observe(Storage::memory());
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&Order { number: 1, secret: String::new() }).id("order-1").await.unwrap();
    let worker = Worker::builder(storage).handle(bill).handle(|_: Invoice| async { Ok::<(), JobError>(()) });
    assert_eq!(worker.build().unwrap().run_until_idle().await.unwrap().completed, 2);
    let flush = move || {
        tracers.shutdown().unwrap();
        meters.shutdown().unwrap();
        receiver.end()
    };
    let received = tokio::task::spawn_blocking(flush).await.unwrap();

    assert_path(&received, &["send orders", "process orders", "send invoices", "process invoices"]);
    let process = span(&received, "process orders");
    assert_eq!(process["kind"], "SPAN_KIND_CONSUMER");
    assert_eq!(process["attributes"]["messaging.message.id"], "order-1");
    assert_eq!(process["scope"], "jobqueue-opentelemetry");
    assert_eq!(process["schema"], "https://opentelemetry.io/schemas/1.44.0");
    for (name, kind) in [
        ("messaging.process.duration", "histogram"),
        ("messaging.client.sent.messages", "sum"),
        ("jobqueue.job.attempts", "sum"),
    ] {
        let metric = received.iter().find(|one| one["metric"] == name);
        assert_eq!(metric.unwrap_or_else(|| panic!("no {name}"))["data"], kind);
    }
}
