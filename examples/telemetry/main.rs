//! One trace through a web service and two queues, exported over OTLP: a request sends an order, whose
//! handler sends an invoice.
//!
//! ```text
//! docker run --rm -p 4317:4317 -p 16686:16686 jaegertracing/all-in-one      # or any collector that listens on 4317
//! cargo run -p jobqueue-examples --features telemetry --example telemetry
//! curl -d '{"item": "book"}' -H 'content-type: application/json' http://127.0.0.1:3000/orders
//! ```
//!
//! `OTEL_EXPORTER_OTLP_ENDPOINT` names another collector, `LISTEN` another address. The program ends with
//! Ctrl-C, and exports what is left.

#![allow(clippy::print_stdout, reason = "a program for people to look at")]

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use jobqueue::{Context, JobError, Queue, QueueMessage, Worker, shutdown_signal};
use jobqueue_examples::{Failure, open_storage};
use jobqueue_opentelemetry::Telemetry;
use opentelemetry::global;
use opentelemetry::trace::{FutureExt, SpanKind, TraceContextExt, Tracer};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::metrics::{PeriodicReader, SdkMeterProvider};
use opentelemetry_sdk::trace::SdkTracerProvider;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order")]
struct Order {
    #[message(non_empty)]
    item: String,
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "invoices", kind = "invoice")]
struct Invoice {
    item: String,
}

/// Takes an order: the send is a child of the span of the request. Many services get that span from a layer
/// of tower.
async fn order(State(orders): State<Queue<Order>>, Json(order): Json<Order>) -> (StatusCode, String) {
    let tracer = global::tracer("shop");
    let request = tracer.span_builder("POST /orders").with_kind(SpanKind::Server).start(&tracer);
    let context = opentelemetry::Context::current_with_span(request);
    let sent = orders.send(&order).into_future().with_context(context.clone()).await;
    context.span().end();
    match sent {
        Ok(sent) => (StatusCode::ACCEPTED, format!("{}\n", sent.id())),
        Err(error) => (StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n")),
    }
}

/// Packs an order, and sends the next job: a child of this handler's span.
async fn pack(order: Order, ctx: Context) -> Result<(), JobError> {
    println!("packed: {}", order.item);
    ctx.queue::<Invoice>().await?.send(&Invoice { item: order.item }).await?;
    Ok(())
}

async fn bill(invoice: Invoice) -> Result<(), JobError> {
    println!("billed: {}", invoice.item);
    Ok(())
}

/// Sets the providers of the process. The exporters read the environment of OpenTelemetry.
fn providers() -> Result<(SdkTracerProvider, SdkMeterProvider), Failure> {
    let resource = Resource::builder().with_service_name("shop").build();
    let spans = opentelemetry_otlp::SpanExporter::builder().with_tonic().build()?;
    let metrics = opentelemetry_otlp::MetricExporter::builder().with_tonic().build()?;
    let tracers =
        SdkTracerProvider::builder().with_batch_exporter(spans).with_resource(resource.clone()).build();
    let reader = PeriodicReader::builder(metrics).with_interval(Duration::from_secs(15)).build();
    let meters = SdkMeterProvider::builder().with_reader(reader).with_resource(resource).build();
    global::set_tracer_provider(tracers.clone());
    global::set_meter_provider(meters.clone());
    Ok((tracers, meters))
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let (tracers, meters) = providers()?;
    let telemetry = Telemetry::new();
    let storage = telemetry.observe(open_storage(None, "telemetry").await?);
    let orders = storage.queue::<Order>().await?;
    let lengths = telemetry.watch_queues(&storage, &["orders", "invoices"], Duration::from_secs(10))?;
    let lengths = tokio::spawn(lengths);

    let listen = std::env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".to_owned());
    let listener = tokio::net::TcpListener::bind(&listen).await?;
    println!("orders are taken at http://{}/orders", listener.local_addr()?);
    let service = Router::new().route("/orders", post(order)).with_state(orders);
    let service = axum::serve(listener, service).with_graceful_shutdown(shutdown_signal());

    let worker = Worker::builder(storage).handle(pack).handle(bill).build()?;
    let serving = async { Ok::<_, Failure>(service.await?) };
    let working = async { Ok::<_, Failure>(worker.run_until(shutdown_signal()).await?) };
    // Both end with the signal. If one fails, the other is dropped.
    let ended = tokio::try_join!(serving, working);
    lengths.abort();
    // Off the runtime: the exporters wait for their last answers. Also after a failure, whose spans are of
    // interest.
    let exported =
        tokio::task::spawn_blocking(move || tracers.shutdown().and_then(|()| meters.shutdown())).await;
    let ((), report) = ended?;
    println!("completed {}", report.completed);
    Ok(exported??)
}
