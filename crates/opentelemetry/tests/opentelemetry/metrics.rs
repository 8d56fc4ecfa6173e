//! Metrics of queues, workers and storages, and the limits of their attributes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use jobqueue::clock::Clock;
use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, PutMessage};
use jobqueue::{Context, JobError, Runtime, SendOptions, Storage};
use jobqueue_testing::faults::{Fault, Faulty};

use crate::support::{Invoice, Kept, Order, sum, value, worker};

#[tokio::test(start_paused = true)]
async fn life_of_jobs_is_counted_and_measured() {
    let kept = Kept::new();
    let storage = kept.storage();
    let orders = storage.queue::<Order>().await.unwrap();
    for sent in orders.send_all((0..3).map(|number| Order { number })).await.unwrap() {
        sent.unwrap();
    }
    let handler = |order: Order| async move {
        tokio::time::sleep(Duration::from_secs(1)).await;
        if order.number == 0 { Err(JobError::dead_letter("no")) } else { Ok(()) }
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 2);
    assert_eq!(report.dead_lettered, 1);

    let orders = ("messaging.destination.name", "orders");
    let kind = ("jobqueue.job.kind", "order");
    assert_eq!(sum(&kept, "messaging.client.sent.messages", &[orders]), 3.0);
    assert_eq!(sum(&kept, "messaging.client.consumed.messages", &[orders]), 3.0);
    assert_eq!(sum(&kept, "messaging.process.duration", &[orders]), 3.0);
    assert_eq!(sum(&kept, "messaging.process.duration", &[("error.type", "handler_error")]), 1.0);
    for operation in ["send", "receive", "settle"] {
        let operation = ("messaging.operation.name", operation);
        assert!(
            sum(&kept, "messaging.client.operation.duration", &[orders, operation]) > 0.0,
            "{operation:?}"
        );
    }
    assert_eq!(sum(&kept, "jobqueue.job.wait", &[orders, kind]), 3.0);
    assert_eq!(sum(&kept, "jobqueue.job.attempts", &[kind, ("jobqueue.outcome", "completed")]), 2.0);
    assert_eq!(sum(&kept, "jobqueue.job.attempts", &[kind, ("jobqueue.outcome", "dead_lettered")]), 1.0);
    assert_eq!(sum(&kept, "jobqueue.job.dead_letters", &[orders, ("jobqueue.reason", "rejected")]), 1.0);
    assert_eq!(sum(&kept, "jobqueue.queue.in_flight", &[orders, kind]), 0.0, "none runs any more");
    assert!(!kept.points("jobqueue.queue.in_flight").is_empty());
    assert!(
        sum(&kept, "jobqueue.storage.transactions", &[("jobqueue.storage.operation", "get messages")]) >= 1.0
    );
}

#[tokio::test(start_paused = true)]
async fn kind_that_is_handled_has_its_name_before_its_first_run() {
    let kept = Kept::new();
    let storage = kept.storage();
    storage.queue::<Order>().await.unwrap();
    let unreadable = r#"{"specversion":"1.0","id":"1","source":"/shop","type":"order","data":{}}"#;
    storage.queues().put(&"orders".parse().unwrap(), PutMessage::new(unreadable)).await.unwrap();
    let handler = |_: Order| async { Ok::<(), JobError>(()) };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.dead_lettered, 1);
    let kind = ("jobqueue.job.kind", "order");
    assert_eq!(sum(&kept, "jobqueue.job.attempts", &[kind, ("jobqueue.outcome", "dead_lettered")]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn jobs_of_a_relay_are_counted_by_their_kinds() {
    let kept = Kept::new();
    let (storage, destination) = (kept.storage(), Storage::memory());
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
    destination.queue::<Order>().await.unwrap();
    let relay = worker(&storage).relay("orders", &destination).build().unwrap();
    assert_eq!(relay.run_until_idle().await.unwrap().completed, 1);
    let points = kept.points("jobqueue.queue.in_flight");
    let kinds: BTreeSet<_> =
        points.iter().filter_map(|(attributes, _)| value(attributes, "jobqueue.job.kind")).collect();
    assert_eq!(kinds.into_iter().collect::<Vec<_>>(), ["order"], "a relay is no kind");
    let order = [("jobqueue.job.kind", "order"), ("jobqueue.outcome", "completed")];
    assert_eq!(sum(&kept, "jobqueue.job.attempts", &order), 1.0);
}

// Collecting the gauge of circuits reports these counts, too.
#[tokio::test(start_paused = true)]
async fn attempts_are_counted_where_a_view_drops_the_circuit() {
    let kept = Kept::without("jobqueue.circuit.state");
    let storage = kept.storage();
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
    let handler = |_: Order| async { Ok::<(), JobError>(()) };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert!(kept.points("jobqueue.circuit.state").is_empty());
    assert_eq!(sum(&kept, "jobqueue.job.attempts", &[("jobqueue.outcome", "completed")]), 1.0);
    assert_eq!(sum(&kept, "jobqueue.queue.in_flight", &[]), 0.0);
    assert!(!kept.points("jobqueue.queue.in_flight").is_empty());
}

#[tokio::test(start_paused = true)]
async fn handler_counts_as_running_until_its_worker_is_dropped() {
    let kept = Kept::new();
    let storage = kept.storage();
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
    let (begun, mut started) = tokio::sync::mpsc::unbounded_channel();
    let handler = move |_: Order| {
        let begun = begun.clone();
        async move {
            begun.send(()).unwrap();
            std::future::pending::<Result<(), JobError>>().await
        }
    };
    let running =
        tokio::spawn(worker(&storage).handle(handler).build().unwrap().run_until(std::future::pending()));
    started.recv().await.unwrap();
    assert_eq!(sum(&kept, "jobqueue.queue.in_flight", &[]), 1.0);
    running.abort();
    drop(running.await);
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(sum(&kept, "jobqueue.queue.in_flight", &[]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn leases_circuit_and_throttling_are_counted() {
    let kept = Kept::new();
    let faults = Faulty::new(&Storage::memory());
    let storage = kept.builder().build().observe(faults.storage());
    let orders = storage.queue::<Order>().await.unwrap();
    let invoices = storage.queue::<Invoice>().await.unwrap();
    orders.send(&Order { number: 1 }).await.unwrap();
    for order in 0..30 {
        invoices.send(&Invoice { order }).await.unwrap();
    }
    let cleared = orders.clone();
    let slow = move |_: Order, ctx: Context| {
        let cleared = cleared.clone();
        async move {
            tokio::time::sleep(Duration::from_secs(600)).await;
            cleared.clear().await.unwrap();
            ctx.token().cancelled().await;
            Ok::<(), JobError>(())
        }
    };
    let fail = |_: Invoice| async { Err::<(), _>(JobError::retry("down")) };
    let stop = tokio::time::sleep(Duration::from_secs(700));
    drop(worker(&storage).handle(slow).handle(fail).build().unwrap().run_until(stop).await.unwrap());
    let mut once = Some(Fault::Throttle(Duration::from_secs(1)));
    faults.on(Operation::Put, move |_| once.take());
    orders.send(&Order { number: 2 }).await.unwrap();

    let orders = ("messaging.destination.name", "orders");
    assert!(sum(&kept, "jobqueue.lease.renewals", &[orders, ("jobqueue.outcome", "renewed")]) >= 1.0);
    assert_eq!(sum(&kept, "jobqueue.lease.lost", &[orders, ("jobqueue.cause", "taken")]), 1.0);
    assert_eq!(sum(&kept, "jobqueue.circuit.state", &[("messaging.destination.name", "invoices")]), 1.0);
    assert_eq!(sum(&kept, "jobqueue.circuit.state", &[orders]), 0.0);
    // Another worker must not close the circuit.
    let paused = Metadata::new().with("paused", "true");
    storage.queues().set_queue_metadata(&"invoices".parse().unwrap(), &paused).await.unwrap();
    let ended = tokio::time::sleep(Duration::from_secs(1));
    drop(worker(&storage).handle(fail).build().unwrap().run_until(ended).await.unwrap());
    assert_eq!(sum(&kept, "jobqueue.circuit.state", &[("messaging.destination.name", "invoices")]), 1.0);
    assert_eq!(sum(&kept, "jobqueue.storage.throttled", &[]), 1.0);
    assert_eq!(sum(&kept, "jobqueue.storage.transactions", &[("error.type", "throttled")]), 1.0);
}

#[tokio::test(start_paused = true)]
async fn gauges_show_length_and_age_and_no_unread_queue_as_empty() {
    let kept = Kept::new();
    let faults = Faulty::new(&Storage::memory());
    let telemetry = kept.builder().build();
    let storage = telemetry.observe(faults.storage());
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&Order { number: 1 }).await.unwrap();
    assert!(telemetry.watch_queues(&storage, &["Not a name"], Duration::ZERO).is_err());
    let watch = telemetry.watch_queues(&storage, &["orders", "nowhere"], Duration::from_secs(10)).unwrap();
    let watch = tokio::spawn(watch);
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(kept.points("jobqueue.queue.length").len(), 1, "a queue that does not exist has no length");
    assert_eq!(sum(&kept, "jobqueue.queue.length", &[("messaging.destination.name", "orders")]), 1.0);
    assert_eq!(kept.points("jobqueue.queue.oldest_age").len(), 1);
    for name in ["jobqueue.queue.dead_letters", "jobqueue.queue.paused"] {
        assert_eq!(kept.points(name).len(), 1, "{name}");
        assert_eq!(sum(&kept, name, &[]), 0.0, "{name}");
    }
    let (orders, dead) = ("orders".parse().unwrap(), "orders-poison".parse().unwrap());
    storage.queues().set_queue_metadata(&orders, &Metadata::new().with("paused", "true")).await.unwrap();
    storage.queues().create_queue(&dead, &Metadata::new()).await.unwrap();
    storage.queues().put(&dead, PutMessage::new("{}")).await.unwrap();
    tokio::time::sleep(Duration::from_secs(10)).await;
    for name in ["jobqueue.queue.dead_letters", "jobqueue.queue.paused"] {
        assert_eq!(sum(&kept, name, &[]), 1.0, "{name}");
    }
    faults.on(Operation::QueueProperties, |_| {
        Some(Fault::Refuse(jobqueue::storage::StoreErrorKind::Unavailable))
    });
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert!(kept.points("jobqueue.queue.length").is_empty(), "unknown is not zero");
    watch.abort();
}

// D42
#[tokio::test(start_paused = true)]
async fn gauges_show_each_state_of_jobs_and_nothing_that_is_not_known() {
    let kept = Kept::new();
    let telemetry = kept.builder().build();
    let faults = Faulty::new(&Storage::memory());
    let storage = telemetry.observe(faults.storage());
    let orders = storage.queue::<Order>().await.unwrap();
    let delayed = SendOptions::new().delay(Duration::from_secs(3_600));
    orders.send(&Order { number: 0 }).with(delayed).await.unwrap();
    for number in 0..40 {
        orders.send(&Order { number }).await.unwrap();
    }
    let watch = tokio::spawn(telemetry.watch_queues(&storage, &["orders"], Duration::from_secs(10)).unwrap());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let gauge = |state: &str| sum(&kept, &format!("jobqueue.queue.{state}"), &[]);
    assert_eq!(gauge("length"), 41.0);
    assert_eq!(gauge("waiting"), 40.0);
    assert_eq!(gauge("delayed"), 1.0);
    assert_eq!(gauge("backing_off"), 0.0);
    assert_eq!(
        kept.points("jobqueue.queue.backing_off").len(),
        1,
        "none of them backs off, and that is known"
    );
    // Then the storage does not count, and a peek shows 32 of the 40.
    faults.on(Operation::QueueProperties, |_| {
        Some(Fault::Refuse(jobqueue::storage::StoreErrorKind::Unsupported))
    });
    tokio::time::sleep(Duration::from_secs(10)).await;
    for state in ["length", "waiting", "delayed", "backing_off"] {
        assert!(kept.points(&format!("jobqueue.queue.{state}")).is_empty(), "{state}: unknown is not zero");
    }
    assert_eq!(kept.points("jobqueue.queue.paused").len(), 1);
    watch.abort();
}

// Its age was its delay right away, and an alert fired.
#[tokio::test(start_paused = true)]
async fn age_of_a_delayed_job_counts_since_it_was_due() {
    let kept = Kept::new();
    let telemetry = kept.builder().build();
    let storage = telemetry.observe(Storage::memory());
    let delayed = SendOptions::new().delay(Duration::from_secs(3_600));
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).with(delayed).await.unwrap();
    let watch = tokio::spawn(telemetry.watch_queues(&storage, &["orders"], Duration::from_secs(10)).unwrap());
    tokio::time::sleep(Duration::from_secs(3_605)).await;
    assert_eq!(sum(&kept, "jobqueue.queue.oldest_age", &[]), 0.0, "nothing is visible at the last look");
    tokio::time::sleep(Duration::from_secs(10)).await;
    assert!(sum(&kept, "jobqueue.queue.oldest_age", &[]) < 60.0);
    watch.abort();
}

// The gauges showed nothing of such a queue.
#[tokio::test(start_paused = true)]
async fn queue_that_cannot_be_counted_has_all_other_gauges() {
    let kept = Kept::new();
    let faults = Faulty::new(&Storage::memory());
    let telemetry = kept.builder().build();
    let storage = telemetry.observe(faults.storage());
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
    faults.on(Operation::QueueProperties, |_| {
        Some(Fault::Refuse(jobqueue::storage::StoreErrorKind::Unsupported))
    });
    let watch = tokio::spawn(telemetry.watch_queues(&storage, &["orders"], Duration::from_secs(10)).unwrap());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(kept.points("jobqueue.queue.length").is_empty(), "unknown is not zero");
    for name in ["jobqueue.queue.oldest_age", "jobqueue.queue.paused"] {
        assert_eq!(kept.points(name).len(), 1, "{name}");
    }
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn gauges_of_a_storage_that_hangs_end_together() {
    let kept = Kept::new();
    let faults = Faulty::new(&Storage::memory());
    let telemetry = kept.builder().build();
    let storage = telemetry.observe(faults.storage());
    let names: Vec<String> = (0..20).map(|number| format!("orders-{number}")).collect();
    for name in &names {
        storage.queue_named::<Order>(name).await.unwrap();
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let watch = tokio::spawn(telemetry.watch_queues(&storage, &names, Duration::from_secs(10)).unwrap());
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(kept.points("jobqueue.queue.length").len(), 20);
    faults.on(Operation::QueueProperties, |_| Some(Fault::Hang));
    tokio::time::sleep(Duration::from_secs(27)).await;
    assert!(kept.points("jobqueue.queue.length").is_empty(), "all are older than three intervals");
    watch.abort();
}

#[tokio::test(start_paused = true)]
async fn messages_of_other_programs_cannot_create_series() {
    let kept = Kept::new();
    let storage = kept.storage();
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).id("an-id-of-the-test").await.unwrap();
    let queue = "orders".parse().unwrap();
    for number in 0..50 {
        let text = format!(
            r#"{{"specversion":"1.0","id":"x{number}","source":"/s","type":"strange-{number}","deadletterreason":"own{number}",
            "deadletterqueue":"q","deadlettertime":"2026-01-01T00:00:00Z","deadletterdeliveries":1,"data":{{}}}}"#
        );
        storage.queues().put(&queue, PutMessage::new(text)).await.unwrap();
    }
    let handler = |_: Order| async { Ok::<(), JobError>(()) };
    drop(worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap());
    let allowed: BTreeSet<&str> = [
        "messaging.system",
        "jobqueue.storage.name",
        "messaging.destination.name",
        "messaging.operation.name",
        "messaging.operation.type",
        "error.type",
        "jobqueue.job.kind",
        "jobqueue.outcome",
        "jobqueue.reason",
        "jobqueue.cause",
        "jobqueue.storage.operation",
    ]
    .into();
    for (name, attributes, _) in kept.all_points() {
        for attribute in &attributes {
            assert!(allowed.contains(attribute.key.as_str()), "{name}: {attribute:?}");
            let text = attribute.value.as_str();
            assert!(
                !text.contains("strange") && !text.contains("own") && !text.contains("an-id"),
                "{name}: {text}"
            );
        }
    }
    assert!(kept.points("jobqueue.job.dead_letters").len() <= 2);
    assert!(kept.points("jobqueue.job.attempts").len() <= 4);
}

/// The clock of a machine that is two hours fast.
#[derive(Debug)]
struct Ahead;

impl Clock for Ahead {
    fn now(&self) -> SystemTime {
        SystemTime::now() + Duration::from_secs(7_200)
    }
}

#[tokio::test]
async fn age_of_the_oldest_job_is_that_by_the_clock_of_the_storage() {
    let kept = Kept::new();
    let telemetry = kept.builder().build();
    let storage = Storage::memory();
    storage.queue::<Order>().await.unwrap().send(&Order { number: 1 }).await.unwrap();
    let ahead = storage.with_runtime(Runtime::new().with_clock(Arc::new(Ahead)));
    let watch = tokio::spawn(telemetry.watch_queues(&ahead, &["orders"], Duration::from_secs(10)).unwrap());
    while kept.points("jobqueue.queue.oldest_age").is_empty() {
        tokio::task::yield_now().await;
    }
    let age = sum(&kept, "jobqueue.queue.oldest_age", &[]);
    assert!(age < 3_600.0, "{age}");
    watch.abort();
}
