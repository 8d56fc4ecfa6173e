//! The main promises again on Azure Storage (Azurite), in real time, with short leases.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::azure::Options;
use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::settings::{Metadata, SettingOverrides};
use jobqueue::storage::ContainerName;
use jobqueue::{
    Context, JobError, JobInfo, Outcome, Queue, QueueMessage, Reason, SendOptions, Storage, Worker,
    WorkerBuilder,
};
use jobqueue_tests::azurite::{Azurite, LogOnFailure};
use jobqueue_tests::running::Running;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(
    queue = "orders",
    kind = "order",
    lease = "10s",
    poison_threshold = 2,
    backoff(base = "1s", max = "1s")
)]
struct Order {
    #[message(key, non_empty)]
    id: String,
    note: String,
}

fn order(id: &str) -> Order {
    Order { id: id.to_owned(), note: String::new() }
}

struct Bench {
    storage: Storage,
    name: String,
    orders: Queue<Order>,
    _log: LogOnFailure<'static>,
}

impl Bench {
    async fn new() -> Self {
        let azurite = Azurite::shared();
        let options = Options::from_connection_string(&azurite.connection_string()).unwrap();
        let storage = Storage::open(options).await.unwrap();
        let name = format!("orders-{}", uuid::Uuid::new_v4().simple());
        let orders = storage.queue_named(&name).await.unwrap();
        Self { storage, name, orders, _log: azurite.log_on_failure() }
    }

    fn worker(&self) -> WorkerBuilder {
        Worker::builder(self.storage.clone()).max_idle_delay(Duration::from_millis(300))
    }
}

#[tokio::test]
async fn jobs_are_done_once_each_and_gone() {
    let bench = Bench::new().await;
    let all: Vec<Order> = (0..40).map(|number| order(&number.to_string())).collect();
    let sent: Result<Vec<_>, _> = bench.orders.send_all(&all).await.unwrap().into_iter().collect();
    assert_eq!(sent.unwrap().len(), 40);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let handler = move |order: Order, info: JobInfo| {
        kept.lock().unwrap().push((order.id.clone(), info.attempt));
        async { Ok::<(), JobError>(()) }
    };
    let worker = bench.worker().handle_on(&bench.name, handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!(report.completed, 40);
    assert_eq!(bench.orders.approximate_len().await.unwrap(), 0);
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_by_key(|(id, _)| id.parse::<u32>().unwrap());
    assert!(seen.iter().enumerate().all(|(number, run)| *run == (number.to_string(), 1)), "{seen:?}");
}

#[tokio::test]
async fn failures_are_retried_then_dead_lettered_and_can_be_put_back() {
    let bench = Bench::new().await;
    let sent = bench.orders.send(&order("a")).await.unwrap();
    let is_mended = Arc::new(AtomicU32::new(0));
    let mended = Arc::clone(&is_mended);
    let handler = move |_: Order, info: JobInfo| {
        let mended = mended.load(Ordering::SeqCst) == 1;
        async move { if mended { Ok(()) } else { Err(JobError::retry(format!("failure {}", info.attempt))) } }
    };
    let mut worker = Running::start(bench.worker().handle_on(&bench.name, handler)).await;
    assert_eq!(worker.ended().await.name(), "retried");
    let ended = worker.ended().await;
    assert!(matches!(ended.outcome, Outcome::DeadLettered(reason) if reason == Reason::ATTEMPTS_EXHAUSTED));
    let letters = bench.orders.dead_letters().unwrap();
    let listed = letters.list().await.unwrap().letters;
    assert_eq!(listed.len(), 1);
    assert_eq!(&*listed[0].id, sent.id());
    assert_eq!(listed[0].error.as_deref(), Some("failure 2"));

    is_mended.store(1, Ordering::SeqCst);
    assert_eq!(letters.redrive(DeadLetterOptions::new()).await.unwrap().moved, [sent.id()]);
    assert_eq!(worker.ended().await.name(), "completed");
    drop(worker.stop().await);
    assert!(bench.orders.is_empty().await.unwrap() && letters.is_empty().await.unwrap());
}

#[tokio::test]
async fn a_later_attempt_finds_the_newest_checkpoint() {
    let bench = Bench::new().await;
    bench.orders.send(&order("a")).await.unwrap();
    // The second checkpoint is too large for a message and goes to a blob.
    let handler = |_: Order, ctx: Context| async move {
        match ctx.resume::<String>().await? {
            None => {
                ctx.checkpoint("small").await?;
                ctx.checkpoint(&"x".repeat(100_000)).await?;
                Err(JobError::retry("stopped halfway"))
            }
            Some(progress) => {
                assert_eq!(progress.len(), 100_000);
                Ok(())
            }
        }
    };
    let mut worker = Running::start(bench.worker().handle_on(&bench.name, handler)).await;
    assert_eq!(worker.ended().await.name(), "retried");
    assert_eq!(worker.ended().await.name(), "completed");
    drop(worker.stop().await);
}

#[tokio::test]
async fn large_payloads_travel_in_blobs_and_leave_none() {
    let bench = Bench::new().await;
    let large = Order { id: "large".to_owned(), note: "<&ü\u{ffff}".repeat(50_000) };
    bench.orders.send(&large).await.unwrap();
    let blobs = bench.storage.blobs();
    let payloads = ContainerName::new("jobqueue-payloads").unwrap();
    let ours = async || {
        let (mut found, mut marker) = (0, None);
        loop {
            let page = blobs.list_blobs(&payloads, "", marker.as_deref()).await.unwrap();
            found += page.blobs.iter().filter(|(name, _)| name.contains(&bench.name)).count();
            marker = page.next;
            if marker.is_none() {
                return found;
            }
        }
    };
    assert_eq!(ours().await, 1);
    let handler = move |order: Order| {
        assert_eq!(order, large);
        async { Ok::<(), JobError>(()) }
    };
    let worker = bench.worker().handle_on(&bench.name, handler).build().unwrap();
    assert_eq!(worker.run_until_idle().await.unwrap().completed, 1);
    assert_eq!(ours().await, 0);
}

/// F31, F32: a handler runs for two leases, and blocks its thread for one of them.
#[tokio::test]
async fn long_handler_keeps_its_message() {
    let bench = Bench::new().await;
    bench.orders.send(&order("long")).await.unwrap();
    let handler = |_: Order, ctx: Context| async move {
        std::thread::sleep(Duration::from_secs(4));
        tokio::time::sleep(Duration::from_secs(4)).await;
        assert!(!ctx.is_cancelled());
        Ok::<(), JobError>(())
    };
    let mut short = SettingOverrides::default();
    short.timeout = Some(Duration::from_secs(4));
    let worker = bench.worker().overrides(short).handle_on(&bench.name, handler).build().unwrap();
    let report = worker.run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.lease_lost, 0);
    assert!(bench.orders.is_empty().await.unwrap());
}

/// F112: a shutdown waits for a handler that ends, and releases the message of one that does not: another
/// worker has it at once.
#[tokio::test]
async fn shutdown_loses_nothing() {
    let bench = Bench::new().await;
    let started = Arc::new(Notify::new());
    let runs = Arc::new(AtomicUsize::new(0));
    let worker = |stuck: bool| {
        let (signal, counted) = (Arc::clone(&started), Arc::clone(&runs));
        let handler = move |order: Order, info: JobInfo| {
            let signal = Arc::clone(&signal);
            counted.fetch_add(1, Ordering::SeqCst);
            async move {
                assert_eq!(info.attempt, 1, "a shutdown costs no attempt");
                signal.notify_one();
                match (stuck, &*order.id) {
                    (true, "stuck") => std::future::pending().await,
                    (true, _) => tokio::time::sleep(Duration::from_millis(500)).await,
                    (false, _) => {}
                }
                Ok::<(), JobError>(())
            }
        };
        let builder = bench.worker().handle_on(&bench.name, handler).concurrency(1);
        builder.shutdown_timeout(Duration::from_secs(2)).cancel_grace(Duration::from_millis(100))
    };
    bench.orders.send(&order("quick")).await.unwrap();
    let first = Running::start(worker(true)).await;
    started.notified().await;
    let report = first.stop().await;
    assert_eq!(report.completed, 1);
    assert!(report.is_clean());

    bench.orders.send(&order("stuck")).await.unwrap();
    let second = Running::start(worker(true)).await;
    started.notified().await;
    let report = second.stop().await;
    assert_eq!(report.completed, 0);
    assert_eq!(report.cancelled, 1);
    assert!(!report.is_clean());

    let third = worker(false).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(third.completed, 1);
    assert_eq!(runs.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn delays_keys_headers_and_settings_arrive() {
    let bench = Bench::new().await;
    let queues = bench.storage.queues();
    let metadata = Metadata::new().with("poisonthreshold", "7").with("defaulttimeout", "5");
    queues.set_queue_metadata(bench.orders.name(), &metadata).await.unwrap();
    let options = SendOptions::new().delay(Duration::from_secs(2)).header("tenant", "blue");
    bench.orders.send(&order("later")).with(options).await.unwrap();
    assert!(bench.orders.receive(Duration::ZERO).await.unwrap().is_none());
    let handler = |_: Order, info: JobInfo| async move {
        assert_eq!(info.key.as_deref(), Some("later"));
        assert_eq!(info.max_attempts, 7);
        assert_eq!(info.headers["tenant"], "blue");
        Ok::<(), JobError>(())
    };
    let mut worker = Running::start(bench.worker().handle_on(&bench.name, handler)).await;
    assert_eq!(worker.ended().await.name(), "completed");
    drop(worker.stop().await);
}
