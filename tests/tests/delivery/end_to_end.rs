//! From `send` to `settle` on the memory storage, in paused time.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::dead_letters::DeadLetterOptions;
use jobqueue::{
    Context, ErrorKind, Event, Extension, JobError, JobInfo, Outcome, QueueMessage, Reason, Runtime, State,
    Storage, Worker, WorkerBuilder,
};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, QueueMessage)]
#[message(queue = "orders", kind = "order", poison_threshold = 3, backoff(base = "1s", max = "10s"))]
pub(super) struct Order {
    #[message(key, non_empty)]
    id: String,
    #[message(range(1..=100))]
    pub(super) count: u32,
}

pub(super) fn order(id: &str) -> Order {
    Order { id: id.into(), count: 1 }
}

pub(super) fn worker(storage: &Storage) -> WorkerBuilder {
    Worker::builder(storage.clone().with_runtime(Runtime::paused()))
}

type Log = Arc<Mutex<Vec<String>>>;

type Seen = Arc<Mutex<Vec<(Order, JobInfo)>>>;

fn outcomes() -> (Log, impl Fn(&Event) + Send + Sync + 'static) {
    let log = Log::default();
    let sink = Arc::clone(&log);
    (log, move |event: &Event| {
        if let Event::Finished { outcome, .. } = event {
            sink.lock().unwrap().push(outcome.as_str().to_owned());
        }
    })
}

#[tokio::test(start_paused = true)]
async fn a_sent_message_is_handled_once_and_gone() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    let sent = orders.send(&order("a")).await.unwrap();
    let seen = Seen::default();
    let handler = |order: Order, info: JobInfo, State(seen): State<Seen>| async move {
        seen.lock().unwrap().push((order, info));
        Ok::<(), JobError>(())
    };
    let report = worker(&storage).state(Arc::clone(&seen)).handle(handler).build().unwrap();
    let report = report.run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(orders.approximate_len().await.unwrap(), 0);
    let seen = seen.lock().unwrap();
    assert_eq!(seen[0].0, order("a"));
    assert_eq!(&*seen[0].1.id, sent.id());
    assert_eq!(seen[0].1.attempt, 1);
    assert_eq!(seen[0].1.key.as_deref(), Some("a"));
}

// I11
#[tokio::test(start_paused = true)]
async fn failing_job_is_dead_lettered_after_its_attempts() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    let sent = orders.send(&order("a")).await.unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |_: Order, ctx: Context| {
        let runs = Arc::clone(&counted);
        async move {
            let run = runs.fetch_add(1, Ordering::SeqCst) + 1;
            assert_eq!(ctx.info().attempt, run);
            Err::<(), _>(JobError::retry(format!("failure {run}")))
        }
    };
    let (log, listen) = outcomes();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stop = Mutex::new(Some(stop));
    let watch = move |event: &Event| {
        if matches!(event, Event::Finished { outcome: Outcome::DeadLettered(_), .. }) {
            drop(stop.lock().unwrap().take());
        }
    };
    let worker = worker(&storage).handle(handler).on_event(listen).on_event(watch).build().unwrap();
    let report = worker.run_until(async { drop(stopped.await) }).await.unwrap();
    assert_eq!(report.retried, 2);
    assert_eq!(report.dead_lettered, 1);
    assert_eq!(runs.load(Ordering::SeqCst), 3);
    assert_eq!(*log.lock().unwrap(), ["retried", "retried", "dead_lettered"]);

    let dead = orders.dead_letters().unwrap();
    let letters = dead.peek().await.unwrap();
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].id, sent.id());
    assert_eq!(letters[0].reason, Reason::ATTEMPTS_EXHAUSTED);
    assert_eq!(letters[0].error.as_deref(), Some("failure 3"));
    assert_eq!(letters[0].queue, "orders");

    let redriven = dead.redrive(DeadLetterOptions::new()).await.unwrap();
    assert_eq!(redriven.moved, [sent.id()]);
    assert_eq!(dead.approximate_len().await.unwrap(), 0);
    assert_eq!(orders.approximate_len().await.unwrap(), 1);
    let delivery = orders.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(&*delivery.info().id, sent.id());
    assert_eq!(delivery.info().attempt, 1);
    delivery.complete().await.unwrap();
}

// I14
#[tokio::test(start_paused = true)]
async fn snoozes_and_releases_cost_no_attempt() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&order("a")).await.unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let stop = Arc::new(Mutex::new(Some(stop)));
    let handler = move |_: Order, ctx: Context| {
        let (runs, stop) = (Arc::clone(&counted), Arc::clone(&stop));
        async move {
            assert_eq!(ctx.info().attempt, 1);
            if runs.fetch_add(1, Ordering::SeqCst) < 50 {
                return Err(JobError::snooze(Duration::from_secs(3600)));
            }
            drop(stop.lock().unwrap().take());
            Ok(())
        }
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let report = worker.run_until(async { drop(stopped.await) }).await.unwrap();
    assert_eq!(report.released, 50);
    assert_eq!(report.completed, 1);
}

// I10
#[tokio::test(start_paused = true)]
async fn later_attempt_finds_the_newest_checkpoint() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&order("a")).await.unwrap();
    let handler = |_: Order, ctx: Context| async move {
        let row: u32 = ctx.resume().await?.unwrap_or(0);
        // Each attempt does two rows and fails; a large checkpoint goes to a blob.
        ctx.checkpoint(&(row + 1)).await?;
        ctx.checkpoint(&(row + 2)).await?;
        assert_eq!(row, (ctx.info().attempt - 1) * 2);
        if ctx.info().attempt < 3 { Err(JobError::retry_after(Duration::ZERO, "not yet")) } else { Ok(()) }
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.retried, 2);
    assert_eq!(report.completed, 1);
}

// F31
#[tokio::test(start_paused = true)]
async fn long_handler_keeps_its_message() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&order("a")).await.unwrap();
    let handler = |_: Order, ctx: Context| async move {
        tokio::time::sleep(Duration::from_secs(300)).await;
        assert!(!ctx.is_cancelled());
        Ok::<(), JobError>(())
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.lease_lost, 0);
}

// F33
#[tokio::test(start_paused = true)]
async fn panic_is_a_failed_attempt_and_worker_goes_on() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&order("bad")).await.unwrap();
    orders.send(&order("good")).await.unwrap();
    let handler = |order: Order| async move {
        assert!(order.id != "bad", "planted panic");
        Ok::<(), JobError>(())
    };
    let (log, listen) = outcomes();
    let worker = worker(&storage).handle(handler).on_event(listen).build().unwrap();
    let _ = worker.run_until(tokio::time::sleep(Duration::from_secs(120))).await.unwrap();
    let mut log = log.lock().unwrap().clone();
    log.sort();
    assert_eq!(log, ["completed", "dead_lettered", "retried", "retried"]);
    let letters = orders.dead_letters().unwrap().peek().await.unwrap();
    assert!(letters[0].error.as_deref().unwrap().contains("planted panic"));
}

// F40
#[tokio::test(start_paused = true)]
async fn endless_job_is_cancelled_and_counted() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&order("a")).await.unwrap();
    let handler = |_: Order| async move {
        std::future::pending::<()>().await;
        Ok::<(), JobError>(())
    };
    let worker = worker(&storage).handle(handler).max_run_time(Duration::from_secs(100)).build().unwrap();
    let report = worker.run_until(tokio::time::sleep(Duration::from_secs(600))).await.unwrap();
    assert_eq!(report.retried, 2);
    assert_eq!(report.dead_lettered, 1);
}

#[derive(Serialize, Deserialize, QueueMessage)]
#[message(queue = "probes", kind = "probe", poison_threshold = 1, max_run_time = "10s")]
struct Probe {}

/// The time of a message type counts for its jobs, whether it is shorter or longer than that of the worker.
#[tokio::test(start_paused = true)]
async fn job_runs_for_the_time_of_its_kind_at_most() {
    for (worker_allows, handler_takes, completed) in [(3_600, 20, 0), (5, 8, 1)] {
        let storage = Storage::memory();
        let probes = storage.queue::<Probe>().await.unwrap();
        probes.send(&Probe {}).await.unwrap();
        let handler = move |_: Probe| async move {
            tokio::time::sleep(Duration::from_secs(handler_takes)).await;
            Ok::<(), JobError>(())
        };
        let worker = worker(&storage).handle(handler).max_run_time(Duration::from_secs(worker_allows));
        let report =
            worker.build().unwrap().run_until(tokio::time::sleep(Duration::from_secs(60))).await.unwrap();
        assert_eq!(report.completed, completed, "{worker_allows}");
        let letters = probes.dead_letters().unwrap().peek().await.unwrap();
        let errors: Vec<_> = letters.iter().filter_map(|letter| letter.error.as_deref()).collect();
        let expected =
            if completed == 0 { &["the job exceeded its maximum run time of 10s"][..] } else { &[] };
        assert_eq!(errors, expected);
    }
}

// F112
#[tokio::test(start_paused = true)]
async fn shutdown_waits_then_cancels_then_releases() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    for n in 0..100 {
        orders.send(&order(&n.to_string())).await.unwrap();
    }
    let handler = |order: Order| async move {
        if order.id == "50" {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(Duration::from_secs(5)).await;
        Ok::<(), JobError>(())
    };
    let worker = worker(&storage).handle(handler).concurrency(100).build().unwrap();
    let report = worker.run_until(tokio::time::sleep(Duration::from_secs(1))).await.unwrap();
    assert_eq!(report.completed, 99);
    assert_eq!(report.released, 1);
    assert_eq!(report.cancelled, 1);
    assert!(!report.is_clean());
    // Visible at once, and no attempt is counted.
    let delivery = orders.receive(Duration::ZERO).await.unwrap().unwrap();
    assert_eq!(delivery.message().id.as_str(), "50");
    assert_eq!(delivery.info().attempt, 1);
    delivery.complete().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn large_payloads_travel_in_blobs_and_leave_none_behind() {
    #[derive(Serialize, Deserialize, QueueMessage)]
    #[message(queue = "large", kind = "large")]
    struct Large {
        text: String,
    }
    let storage = Storage::memory();
    let queue = storage.queue::<Large>().await.unwrap();
    let text = "&".repeat(200_000);
    queue.send(&Large { text: text.clone() }).await.unwrap();
    let expected = text.clone();
    let handler = move |large: Large| {
        let expected = expected.clone();
        async move {
            assert_eq!(large.text, expected);
            Ok::<(), JobError>(())
        }
    };
    let report = worker(&storage).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    let container = jobqueue::storage::ContainerName::new("jobqueue-payloads").unwrap();
    assert!(storage.blobs().list_blobs(&container, "", None).await.unwrap().blobs.is_empty());
}

#[tokio::test(start_paused = true)]
async fn delays_longer_than_seven_days_hop() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    let wait = Duration::from_secs(30 * 86_400);
    // The clock of the queue handle is the system's; the worker's is paused. Both begin together.
    orders.send(&order("a")).delay(wait).await.unwrap();
    let started = tokio::time::Instant::now();
    let (stop, stopped) = tokio::sync::oneshot::channel::<Duration>();
    let stop = Arc::new(Mutex::new(Some(stop)));
    let handler = move |_: Order, ctx: Context| {
        let stop = Arc::clone(&stop);
        async move {
            assert_eq!(ctx.info().attempt, 1);
            if let Some(stop) = stop.lock().unwrap().take() {
                let _ = stop.send(started.elapsed());
            }
            Ok::<(), JobError>(())
        }
    };
    let worker = worker(&storage).handle(handler).build().unwrap();
    let (seen, at) = tokio::sync::oneshot::channel();
    let report = worker.run_until(async move { drop(seen.send(stopped.await)) }).await.unwrap();
    let at = at.await.unwrap().unwrap();
    assert!(at >= wait - Duration::from_secs(60) && at < wait + Duration::from_secs(60), "{at:?}");
    assert_eq!(report.released, 4);
}

#[tokio::test(start_paused = true)]
async fn layers_see_jobs_and_can_add_to_them() {
    #[derive(Clone)]
    struct Tenant(String);
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&order("a")).header("tenant", "blue").await.unwrap();
    let handler = |_: Order, Extension(tenant): Extension<Tenant>| async move {
        assert_eq!(tenant.0, "blue");
        Ok::<(), JobError>(())
    };
    let layer = tower::util::MapRequestLayer::new(|mut job: jobqueue::Job| {
        let tenant = job.info().headers["tenant"].clone();
        job.insert(Tenant(tenant));
        job
    });
    let report =
        worker(&storage).layer(layer).handle(handler).build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
}

/// In real time: drops are released by the lease renewer's own thread.
#[tokio::test]
async fn a_dropped_delivery_is_released_and_keeps_its_checkpoint() {
    let storage = Storage::memory();
    let orders = storage.queue::<Order>().await.unwrap();
    orders.send(&order("a")).await.unwrap();
    let first = orders.receive(Duration::ZERO).await.unwrap().unwrap();
    first.checkpoint(&7).await.unwrap();
    drop(first);
    let second = orders.receive(Duration::from_secs(5)).await.unwrap().unwrap();
    assert_eq!(second.resume::<u32>().await.unwrap(), Some(7));
    assert_eq!(second.info().attempt, 1);
    assert_eq!(second.info().dequeue_count, 2);
    // `null` in JSON.
    second.checkpoint(&()).await.unwrap();
    drop(second);
    let third = orders.receive(Duration::from_secs(5)).await.unwrap().unwrap();
    assert_eq!(third.resume::<()>().await.unwrap(), Some(()));
    assert_eq!(third.resume::<u32>().await.unwrap(), None);
    third.complete().await.unwrap();
}

#[tokio::test]
async fn worker_that_is_built_wrongly_is_refused_at_once() {
    let storage = Storage::memory();
    async fn handler(_: Order, _: State<u8>) -> Result<(), JobError> {
        Ok(())
    }
    let text = |builder: WorkerBuilder| builder.build().unwrap_err().to_string();
    assert!(text(Worker::builder(storage.clone())).contains("without handlers"));
    assert!(text(Worker::builder(storage.clone()).handle(handler)).contains("no state of type `u8`"));
    let twice = Worker::builder(storage.clone()).state(1_u8).handle(handler).handle(handler);
    assert!(text(twice).contains("two handlers"));
    let none = Worker::builder(storage.clone()).state(1_u8).handle(handler).concurrency(0);
    assert!(text(none).contains("concurrency"));
    // As from a variable that is not set.
    let nameless = Worker::builder(storage).state(1_u8).handle(handler).source("");
    assert!(text(nameless).contains("source has 0 bytes"));
}

/// A send accepts nothing that a worker could not read.
#[tokio::test]
async fn send_that_no_worker_could_read_is_refused() {
    let queue = Storage::memory().queue::<Order>().await.unwrap();
    let order = Order { id: "a".to_owned(), count: 1 };
    let error = queue.send(&order).source("x".repeat(1_025)).await.unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().contains("source has 1025 bytes")),
        (ErrorKind::Invalid, true)
    );
    let headers =
        |count: u32| (0..count).fold(queue.send(&order), |send, n| send.header(format!("h{n}"), "1"));
    let error = headers(201).await.unwrap_err();
    assert_eq!((error.kind(), error.to_string().contains("201 headers")), (ErrorKind::Invalid, true));
    let _ = headers(200).await.unwrap();
}
