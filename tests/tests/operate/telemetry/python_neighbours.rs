//! A job between two programs in Python, on Azurite: the trace of the first goes on to the second.

use std::time::Duration;

use jobqueue::azure::Options;
use jobqueue::{JobError, Storage, Worker};
use jobqueue_opentelemetry::Telemetry;
use jobqueue_tests::azurite::Azurite;
use jobqueue_tests::python;
use jobqueue_tests::running::Running;
use opentelemetry_sdk::trace::{InMemorySpanExporter, SdkTracerProvider};
use serde_json::json;

use super::{Invoice, Order};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const SPAN: &str = "b7ad6b7169203331";

#[tokio::test]
async fn trace_of_a_python_producer_reaches_a_python_consumer() {
    let connection = Azurite::shared().connection_string();
    let exporter = InMemorySpanExporter::default();
    let tracers = SdkTracerProvider::builder().with_simple_exporter(exporter.clone()).build();
    let telemetry = Telemetry::builder().tracer_provider(&tracers).build();
    let storage = telemetry
        .observe(Storage::open(Options::from_connection_string(&connection).unwrap()).await.unwrap());
    let unique = uuid::Uuid::new_v4().simple();
    let (queue, next) = (format!("orders-{unique}"), format!("invoices-{unique}"));
    storage.queue_named::<Order>(&queue).await.unwrap();
    let attributes = json!({"traceparent": format!("00-{TRACE}-{SPAN}-01"), "tracestate": "vendor=python"});
    let job = json!({"type": "order", "data": {"number": 7}, "attributes": attributes});
    python::produce(&connection, &queue, &[job]);

    let invoices = storage.queue_named::<Invoice>(&next).await.unwrap();
    let handler = move |order: Order| {
        let invoices = invoices.clone();
        async move {
            invoices.send(&Invoice { order: order.number }).await?;
            Ok::<(), JobError>(())
        }
    };
    let worker = Worker::builder(storage).max_idle_delay(Duration::from_millis(300));
    let mut worker = Running::start(worker.handle_on(&queue, handler)).await;
    let ended = worker.ended().await;
    assert_eq!(ended.name(), "completed", "{ended:?}");
    assert_eq!(ended.job.unwrap().trace.trace_id(), TRACE);
    drop(worker.stop().await);

    let spans = exporter.get_finished_spans().unwrap();
    let span = |name: String| spans.iter().find(|span| span.name == name).unwrap();
    let (process, send) = (span(format!("process {queue}")), span(format!("send {next}")));
    assert_eq!(process.parent_span_id.to_string(), SPAN);
    assert_eq!(process.span_context.trace_id().to_string(), TRACE);
    assert_eq!(process.span_context.trace_state().get("vendor"), Some("python"));
    let consumed = python::consume(&connection, &next, false);
    let attributes = &consumed.messages[0]["event"]["attributes"];
    let sent = format!("00-{TRACE}-{}-01", send.span_context.span_id());
    assert_eq!(attributes["traceparent"], sent, "Python goes on from our span");
    assert_eq!(attributes["tracestate"], "vendor=python");
}
