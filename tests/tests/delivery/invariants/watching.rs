//! Listeners, settings and waiting producers beside a running worker: I20, F109.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::settings::Metadata;
use jobqueue::storage::{Operation, StoreErrorKind};
use jobqueue::{Event, JobError, Queue, Storage, memory};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, outcomes, task, worker};
use tokio::time::{Instant, timeout};

async fn set(storage: &Storage, name: &str, value: &str) {
    let metadata = Metadata::new().with(name, value);
    storage.queues().set_queue_metadata(&"tasks".parse().unwrap(), &metadata).await.unwrap();
}

// I20
#[tokio::test(start_paused = true)]
async fn a_listener_that_panics_disturbs_neither_jobs_nor_listeners() {
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    for name in ["a", "b"] {
        let _ = queue.send(&task(name)).await.unwrap();
    }
    let handler =
        |task: Task| async move { if task.name == "b" { Err(JobError::dead_letter("no")) } else { Ok(()) } };
    let (log, listen) = outcomes();
    let builder =
        worker(&storage).handle(handler).on_event(|_: &Event| panic!("in every event")).on_event(listen);
    let report = builder.build().unwrap().run_until_idle().await.unwrap();
    assert_eq!(report.completed, 1);
    assert_eq!(report.dead_lettered, 1);
    assert!(report.is_clean());
    log.lock().unwrap().sort();
    assert_eq!(*log.lock().unwrap(), ["completed", "dead_lettered"]);
    assert!(queue.is_empty().await.unwrap());
}

// F109
#[tokio::test(start_paused = true)]
async fn a_paused_queue_is_left_alone_until_it_is_not() {
    let faulty = Faulty::new(&memory::open());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let names = Log::default();
    let sink = Arc::clone(&names);
    let handler = move |task: Task| {
        sink.lock().unwrap().push(task.name);
        async { Ok::<(), JobError>(()) }
    };
    let operator = async {
        let _ = queue.send(&task("before")).await.unwrap();
        after(60).await;
        set(&storage, "paused", "true").await;
        // The settings are at most so old.
        after(31).await;
        let gets = faulty.calls_of(Operation::Get);
        let _ = queue.send(&task("meanwhile")).await.unwrap();
        after(600).await;
        assert_eq!(faulty.calls_of(Operation::Get), gets);
        assert_eq!(queue.approximate_len().await.unwrap(), 1);
        assert_eq!(*names.lock().unwrap(), ["before"]);
        set(&storage, "paused", "false").await;
        after(60).await;
        assert_eq!(*names.lock().unwrap(), ["before", "meanwhile"]);
    };
    let _ = worker(&storage).handle(handler).build().unwrap().run_until(operator).await.unwrap();
}

// AU20-4: a fetched job whose payload comes slowly.
#[tokio::test(start_paused = true)]
async fn job_does_not_begin_in_a_queue_that_was_paused_during_its_download() {
    let faulty = Faulty::new(&memory::open());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&Task { name: "a".into(), data: "x".repeat(100_000) }).await.unwrap();
    faulty.plan_always(Operation::GetBlob, Fault::DelayAfter(Duration::from_secs(60)));
    let operator = async {
        after(10).await;
        set(&storage, "paused", "true").await;
        after(300).await;
    };
    let handler = |_: Task| async { Ok::<(), JobError>(()) };
    let report = worker(&storage).handle(handler).build().unwrap().run_until(operator).await.unwrap();
    assert_eq!(report.completed, 0, "{report:?}");
    assert_eq!(queue.approximate_len().await.unwrap(), 1);
}

// F109
#[tokio::test(start_paused = true)]
async fn a_changed_lease_is_that_of_the_next_delivery() {
    let faulty = Faulty::new(&memory::open());
    let storage = faulty.storage();
    let queue = storage.queue::<Task>().await.unwrap();
    let handler = |_: Task| async {
        after(500).await;
        Ok::<(), JobError>(())
    };
    let operator = async {
        let mut renewed = Vec::new();
        for lease in ["30", "600"] {
            set(&storage, "defaulttimeout", lease).await;
            after(31).await;
            let before = faulty.calls_of(Operation::Update);
            let _ = queue.send(&task(lease)).await.unwrap();
            after(550).await;
            renewed.push(faulty.calls_of(Operation::Update) - before);
        }
        renewed
    };
    let renewed = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&renewed);
    let operator = async { *told.lock().unwrap() = operator.await };
    let report = worker(&storage).handle(handler).build().unwrap().run_until(operator).await.unwrap();
    let renewed = renewed.lock().unwrap();
    assert_eq!(report.completed, 2);
    // 500 s are more than sixteen leases of 30 s, and less than seven tenths of one of 600 s would have to be
    // renewed once.
    assert!(renewed[0] >= 16 && renewed[1] <= 1, "{renewed:?}");
}

// F109
#[tokio::test(start_paused = true)]
async fn a_changed_bound_on_deliveries_holds_for_a_running_worker() {
    let storage = memory::open();
    let queue = storage.queue::<Task>().await.unwrap();
    set(&storage, "maxdeliveries", "2").await;
    let _ = queue.send(&task("killer")).await.unwrap();
    let mut died = 0;
    for _ in 0..5 {
        let handler = |_: Task| async {
            std::future::pending::<()>().await;
            Ok::<(), JobError>(())
        };
        let dying = worker(&storage).handle(handler).build().unwrap();
        // Dropped in the middle, as a crash would.
        died += u32::from(queue.approximate_len().await.unwrap() == 1);
        let _ = timeout(Duration::from_secs(5), dying.run_until(std::future::pending())).await;
        after(40).await;
    }
    let letters = queue.dead_letters().unwrap().peek().await.unwrap();
    assert_eq!(died, 3, "run twice, then dead-lettered by the third");
    assert_eq!(letters.len(), 1, "run twice, then dead-lettered by the third");
    assert_eq!(letters[0].reason, "max_deliveries");
}

async fn filled(storage: &Storage, count: usize) -> Queue<Task> {
    let queue = storage.queue::<Task>().await.unwrap();
    for number in 0..count {
        let _ = queue.send(&task(number.to_string())).await.unwrap();
    }
    queue
}

#[tokio::test(start_paused = true)]
async fn wait_until_below_ends_once_a_worker_drained_enough() {
    let storage = memory::open();
    let queue = filled(&storage, 3).await;
    let handler = |_: Task| async {
        after(60).await;
        Ok::<(), JobError>(())
    };
    let began = Instant::now();
    let waited = Mutex::new(None);
    let waiting = async {
        let left = queue.wait_until_below(2).await.unwrap();
        *waited.lock().unwrap() = Some((left, began.elapsed()));
    };
    let worker = worker(&storage).concurrency(1).handle(handler).build().unwrap();
    let _ = worker.run_until(waiting).await.unwrap();
    let (left, took) = waited.into_inner().unwrap().unwrap();
    assert_eq!(left, 1);
    // The second job is done after two minutes, and the length is looked at every 5 s.
    assert!((Duration::from_secs(120)..=Duration::from_secs(126)).contains(&took), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_short_queue_outlasts_outages_only() {
    let faulty = Faulty::new(&memory::open());
    let queue = filled(&faulty.storage(), 1).await;
    assert_eq!(queue.wait_until_below(2).await.unwrap(), 1, "it is short");
    assert!(timeout(Duration::from_secs(600), queue.wait_until_below(1)).await.is_err(), "1 is not below 1");
    assert!(timeout(Duration::from_secs(600), queue.wait_until_below(0)).await.is_err(), "0 means 1");

    faulty.plan_always(Operation::QueueProperties, Fault::Refuse(StoreErrorKind::Unavailable));
    assert!(timeout(Duration::from_secs(600), queue.wait_until_below(2)).await.is_err(), "it goes on asking");
    let asked = faulty.calls_of(Operation::QueueProperties);
    assert!((120..800).contains(&asked), "asked {asked} times in half an hour");
    let healer = async {
        after(30).await;
        faulty.heal();
    };
    let (left, ()) = tokio::join!(queue.wait_until_below(2), healer);
    assert_eq!(left.unwrap(), 1);

    faulty.plan_always(Operation::QueueProperties, Fault::Refuse(StoreErrorKind::Unauthorized));
    let refused = timeout(Duration::from_secs(60), queue.wait_until_below(2)).await.expect("no waiting");
    assert!(!refused.unwrap_err().is_retryable());
}
