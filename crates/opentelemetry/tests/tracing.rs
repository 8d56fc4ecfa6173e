//! With `tracing-opentelemetry`, spans of the crate `tracing` and spans of jobs form one tree. This is a
//! separate test program, because a subscriber of one thread misses callsites that another thread reached
//! first.

#![allow(clippy::unwrap_used)]

#[path = "opentelemetry/support.rs"]
mod support;

use jobqueue::{Context, JobError};
use opentelemetry::trace::TracerProvider as _;
use support::{Invoice, Kept, Order, is_child, worker};
use tracing::Instrument as _;
use tracing_subscriber::layer::SubscriberExt as _;

async fn bill(order: Order, ctx: Context) -> Result<(), JobError> {
    let invoices = ctx.queue::<Invoice>().await?;
    let work = async {
        tokio::task::yield_now().await;
        invoices.send(&Invoice { order: order.number }).await
    };
    work.instrument(tracing::info_span!("calculate")).await?;
    Ok(())
}

fn subscribed(kept: &Kept) -> tracing::subscriber::DefaultGuard {
    let layer = tracing_opentelemetry::layer().with_tracer(kept.tracers.tracer("shop"));
    tracing::subscriber::set_default(tracing_subscriber::registry().with(layer))
}

#[tokio::test(start_paused = true)]
async fn spans_of_tracing_join_the_trace_of_the_job() {
    let kept = Kept::new();
    let _subscribed = subscribed(&kept);
    let storage = kept.storage();
    let orders = storage.queue::<Order>().await.unwrap();
    let request = tracing::info_span!("request");
    orders.send(&Order { number: 1 }).into_future().instrument(request).await.unwrap();
    let worker = worker(&storage).handle(bill).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    let spans = kept.spans();
    for pair in ["request", "send orders", "process orders", "calculate", "send invoices"].windows(2) {
        assert!(is_child(spans.one(pair[1]), spans.one(pair[0])), "{pair:?} in {:?}", spans.names());
    }
    assert!(spans.all("process").is_empty(), "the worker's own span would be a second one of the job");
}

#[tokio::test(start_paused = true)]
async fn span_of_the_worker_is_kept_by_option() {
    let kept = Kept::new();
    let _subscribed = subscribed(&kept);
    let storage = kept.builder().log_spans(true).build().observe(jobqueue::Storage::memory());
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
    let worker = worker(&storage).handle(bill).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    let spans = kept.spans();
    assert!(is_child(spans.one("process"), spans.one("process orders")));
    assert!(is_child(spans.one("calculate"), spans.one("process")));
}
