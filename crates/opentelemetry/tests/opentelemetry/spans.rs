//! Spans of jobs: tree, links, kinds and attributes.

use std::sync::Arc;
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::storage::Operation;
use jobqueue::{Context, JobError, JobInfo, Reason, Storage};
use jobqueue_testing::faults::{Fault, Faulty};
use opentelemetry::trace::{Span as _, SpanKind, Status, TraceContextExt, Tracer as _, TracerProvider as _};

use crate::support::{Invoice, Kept, Letter, Order, is_child, is_root, linked, value, worker};

async fn bill(order: Order, ctx: Context) -> Result<(), JobError> {
    ctx.queue::<Invoice>().await?.send(&Invoice { order: order.number }).await?;
    Ok(())
}

async fn post(invoice: Invoice, ctx: Context) -> Result<(), JobError> {
    ctx.queue::<Letter>().await?.send(&Letter { order: invoice.order }).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn trace_goes_through_three_queues() {
    let kept = Kept::new();
    let storage = kept.storage();
    let orders = storage.queue::<Order>().await.unwrap();
    let request = kept.tracers.tracer("shop").start("GET /order");
    let context = opentelemetry::Context::current_with_span(request);
    let send = opentelemetry::trace::FutureExt::with_context(
        orders.send(&Order { number: 1 }).into_future(),
        context.clone(),
    );
    send.await.unwrap();
    context.span().end();
    let stop = |_: Letter| async { Ok::<(), JobError>(()) };
    let worker = worker(&storage).handle(bill).handle(post).handle(stop).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 3);

    let spans = kept.spans();
    let path = [
        "GET /order",
        "send orders",
        "process orders",
        "send invoices",
        "process invoices",
        "send letters",
        "process letters",
    ];
    for pair in path.windows(2) {
        assert!(is_child(spans.one(pair[1]), spans.one(pair[0])), "{pair:?}");
        assert!(linked(spans.one(pair[1])).is_empty(), "{pair:?}");
    }
    for queue in ["orders", "invoices", "letters"] {
        let settle = spans.one(&format!("settle {queue}"));
        assert!(is_child(settle, spans.one(&format!("process {queue}"))));
        assert!(is_root(spans.one(&format!("receive {queue}"))));
    }
    let kinds = |name: &str| spans.one(name).span_kind.clone();
    assert_eq!(kinds("send orders"), SpanKind::Producer);
    assert_eq!(kinds("receive orders"), SpanKind::Client);
    assert_eq!(kinds("process orders"), SpanKind::Consumer);
    assert_eq!(kinds("settle orders"), SpanKind::Client);
}

#[tokio::test(start_paused = true)]
async fn spans_have_the_attributes_of_the_conventions() {
    let kept = Kept::new();
    let storage = kept.storage();
    let sent = storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).id("id\n1").await.unwrap();
    let handler = |_: Order| async { Ok::<(), JobError>(()) };
    assert_eq!(
        worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap().completed,
        1
    );
    assert_eq!(sent.id(), "id\n1");
    let spans = kept.spans();
    for (operation, id) in [("send", true), ("receive", false), ("process", true), ("settle", true)] {
        let attributes = &spans.one(&format!("{operation} orders")).attributes;
        let is = |key: &str| value(attributes, key);
        assert_eq!(is("messaging.system").as_deref(), Some("jobqueue"));
        assert_eq!(is("messaging.destination.name").as_deref(), Some("orders"));
        assert_eq!(is("messaging.operation.name").as_deref(), Some(operation));
        assert_eq!(is("messaging.operation.type").as_deref(), Some(operation));
        assert_eq!(is("messaging.message.id").as_deref(), id.then_some("id\\n1"), "{operation}");
        assert_eq!(is("messaging.batch.message_count").is_some(), operation == "receive");
    }
    let process = &spans.one("process orders").attributes;
    assert_eq!(value(process, "jobqueue.job.kind").as_deref(), Some("order"));
    assert_eq!(value(process, "jobqueue.job.attempt").as_deref(), Some("1"));
    assert_eq!(
        value(&spans.one("settle orders").attributes, "jobqueue.outcome").as_deref(),
        Some("completed")
    );
}

#[tokio::test(start_paused = true)]
async fn later_attempts_and_redriven_jobs_link_to_the_sender() {
    let kept = Kept::new();
    let storage = kept.storage();
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&Order { number: 1 }).await.unwrap();
    let fail = |_: Order| async { Err::<(), _>(JobError::retry("secret of the customer")) };
    for _ in 0..2 {
        let minute = tokio::time::sleep(Duration::from_secs(60));
        drop(worker(&storage).handle(fail).build().unwrap().run_until(minute).await.unwrap());
        assert_eq!(
            orders.dead_letters().unwrap().redrive(DeadLetterOptions::new()).await.unwrap().moved.len(),
            1
        );
    }
    let spans = kept.spans();
    let send = spans.one("send orders");
    let attempts = spans.all("process orders");
    assert_eq!(attempts.len(), 4);
    assert!(is_child(attempts[0], send) && linked(attempts[0]).is_empty());
    for attempt in &attempts[1..] {
        assert!(is_root(attempt), "a trace of its own");
        assert_eq!(linked(attempt), [send.span_context.span_id()]);
        assert_ne!(attempt.span_context.trace_id(), send.span_context.trace_id());
    }
    for attempt in attempts {
        assert_eq!(value(&attempt.attributes, "error.type").as_deref(), Some("handler_error"));
        assert_eq!(attempt.status, Status::error(""), "no error's text leaves the process");
    }
    assert_eq!(
        value(&spans.all("settle orders")[1].attributes, "jobqueue.outcome").as_deref(),
        Some("dead_lettered")
    );
}

#[tokio::test(start_paused = true)]
async fn every_attempt_is_linked_by_option() {
    let kept = Kept::new();
    let storage = kept.builder().always_linked(true).build().observe(jobqueue::Storage::memory());
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
    let worker = worker(&storage).handle(bill).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    let spans = kept.spans();
    assert!(is_root(spans.one("process orders")));
    assert_eq!(linked(spans.one("process orders")), [spans.one("send orders").span_context.span_id()]);
    assert!(is_child(spans.one("send invoices"), spans.one("process orders")));
}

#[tokio::test(start_paused = true)]
async fn send_of_a_list_links_to_a_span_for_each_message() {
    let kept = Kept::new();
    let storage = kept.storage();
    let orders = storage.queue::<Order>().await.unwrap();
    for sent in orders.send_all((1..=3).map(|number| Order { number })).await.unwrap() {
        sent.unwrap();
    }
    let handler = |_: Order, _: JobInfo| async { Ok::<(), JobError>(()) };
    assert_eq!(
        worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap().completed,
        3
    );
    let spans = kept.spans();
    let (send, created) = (spans.one("send orders"), spans.all("create orders"));
    assert_eq!(send.span_kind, SpanKind::Client);
    assert_eq!(value(&send.attributes, "messaging.batch.message_count").as_deref(), Some("3"));
    assert_eq!(value(&send.attributes, "messaging.message.id"), None);
    let ids: Vec<_> = created.iter().map(|span| span.span_context.span_id()).collect();
    assert_eq!(linked(send), ids);
    assert_eq!(ids.len(), 3);
    for (create, process) in created.iter().zip(spans.all("process orders")) {
        assert_eq!(create.span_kind, SpanKind::Producer);
        assert!(is_child(process, create));
    }
    let settled: i64 = spans
        .all("settle orders")
        .iter()
        .map(|span| {
            value(&span.attributes, "messaging.batch.message_count").map_or(1, |count| count.parse().unwrap())
        })
        .sum();
    assert_eq!(settled, 3, "alone or together, each message is settled once");
}

#[tokio::test(start_paused = true)]
async fn children_and_continuation_of_a_batch_belong_to_its_sender() {
    let kept = Kept::new();
    let storage = kept.storage();
    let request = kept.tracers.tracer("shop").start("GET /batch");
    let trace = request.span_context().trace_id();
    let context = opentelemetry::Context::current_with_span(request);
    let sending = async {
        let mut batch = storage.batch("monthly").await.unwrap();
        batch.send_all((1..=2).map(|number| Order { number })).await.unwrap();
        batch.then(&Letter { order: 0 }).await.unwrap();
    };
    opentelemetry::trace::FutureExt::with_context(sending, context.clone()).await;
    let worker = worker(&storage)
        .handle(|_: Order| async { Ok::<(), JobError>(()) })
        .handle(|_: Letter| async { Ok::<(), JobError>(()) });
    assert_eq!(worker.build().unwrap().run_until_idle().await.unwrap().completed, 3);
    let spans = kept.spans();
    let children = spans.all("process orders");
    assert_eq!(children.len(), 2);
    for span in children.into_iter().chain([spans.one("process letters")]) {
        assert_eq!(span.span_context.trace_id(), trace, "{}", span.name);
    }
    assert!(is_child(spans.one("process letters"), spans.one("create letters")));
}

#[tokio::test(start_paused = true)]
async fn without_spans_a_message_carries_the_context_of_the_application() {
    let kept = Kept::new();
    let storage = kept.builder().spans(false).build().observe(jobqueue::Storage::memory());
    let request = kept.tracers.tracer("shop").start("GET /order");
    let wanted = request.span_context().clone();
    let context = opentelemetry::Context::current_with_span(request);
    let orders = storage.queue::<Order>().await.unwrap();
    let send = orders.send(&Order { number: 1 }).into_future();
    opentelemetry::trace::FutureExt::with_context(send, context.clone()).await.unwrap();
    let delivery = orders.receive(Duration::from_secs(1)).await.unwrap().unwrap();
    assert_eq!(delivery.info().trace.trace_id(), wanted.trace_id().to_string());
    let received = jobqueue_opentelemetry::context_of(delivery.info());
    assert_eq!(received.span().span_context().trace_id(), wanted.trace_id());
    delivery.complete().await.unwrap();
    assert!(kept.spans().0.is_empty());
}

#[tokio::test(start_paused = true)]
async fn deliveries_settled_by_hand_have_a_span_with_their_outcome() {
    let kept = Kept::new();
    let orders = kept.storage().queue::<Order>().await.unwrap();
    for number in 0..4 {
        orders.send(&Order { number }).id(format!("order-{number}")).await.unwrap();
    }
    for number in 0..4 {
        let delivery = orders.receive(Duration::from_secs(1)).await.unwrap().unwrap();
        match number {
            0 => delivery.complete().await.unwrap(),
            1 => delivery.release(Duration::from_secs(60)).await.unwrap(),
            2 => delivery.fail(Duration::from_secs(60), "no paper").await.unwrap(),
            _ => delivery.dead_letter(Reason::REJECTED, "no printer").await.unwrap(),
        }
    }
    let spans = kept.spans();
    let settled: Vec<_> = spans.0.iter().filter(|span| span.name == "settle orders").collect();
    let outcomes: Vec<_> =
        settled.iter().map(|span| value(&span.attributes, "jobqueue.outcome").unwrap()).collect();
    assert_eq!(outcomes, ["completed", "released", "retried", "dead_lettered"]);
    for (number, span) in settled.into_iter().enumerate() {
        assert_eq!(value(&span.attributes, "messaging.message.id").unwrap(), format!("order-{number}"));
        assert!(is_root(span) && linked(span).len() == 1, "{span:?}");
    }
}

// D44: its length was the difference of two times of the wall clock, which may be set in between.
#[tokio::test(start_paused = true)]
async fn receive_request_has_its_length_whatever_the_wall_clock_shows() {
    let kept = Kept::new();
    let faults = Faulty::new(&Storage::memory());
    let storage = kept.builder().build().observe(faults.storage());
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&Order { number: 1 }).await.unwrap();
    // Virtual time passes, and the wall clock stands still.
    let slow = Duration::from_secs(10);
    faults.plan(Operation::Get, 1, Fault::DelayAfter(slow));
    let delivery = orders.receive(slow * 2).await.unwrap().unwrap();
    delivery.complete().await.unwrap();
    let spans = kept.spans();
    let receive = spans.one("receive orders");
    assert!(receive.end_time.duration_since(receive.start_time).unwrap() >= slow, "{receive:?}");
    assert!(kept.longest("messaging.client.operation.duration") >= 10.0);
}

#[tokio::test(start_paused = true)]
async fn settlement_that_fails_is_an_error_in_its_span() {
    let kept = Kept::new();
    let storage = kept.storage();
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&Order { number: 1 }).await.unwrap();
    let delivery = orders.receive(Duration::from_secs(1)).await.unwrap().unwrap();
    orders.clear().await.unwrap();
    delivery.complete().await.unwrap_err();
    let spans = kept.spans();
    assert_eq!(value(&spans.one("settle orders").attributes, "error.type").unwrap(), "lease_lost");
}

#[tokio::test(start_paused = true)]
async fn service_bus_is_the_system_that_the_conventions_name() {
    let memory = jobqueue::Storage::memory();
    for (description, system) in [("servicebus:shop.example", "servicebus"), ("memory:", "jobqueue")] {
        let kept = Kept::new();
        let (queues, blobs) = (Arc::clone(memory.queues().store()), Arc::clone(memory.blobs()));
        let storage = jobqueue::Storage::new(queues, blobs, description);
        let storage = kept.builder().build().observe(storage);
        storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
        let spans = kept.spans();
        assert_eq!(value(&spans.one("send orders").attributes, "messaging.system").unwrap(), system);
        let sent = kept.points("messaging.client.sent.messages");
        let is_system = |key: &opentelemetry::KeyValue| {
            key.key.as_str() == "messaging.system" && key.value.as_str() == system
        };
        assert!(sent.iter().all(|(keys, _)| keys.iter().any(is_system)), "{sent:?}");
    }
}
