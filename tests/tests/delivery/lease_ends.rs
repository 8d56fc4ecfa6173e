//! Handlers whose leases end: they are dropped, and none begins.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use jobqueue::storage::{Metadata, Operation, StoreErrorKind};
use jobqueue::{Event, JobError, Outcome, Storage, WorkerBuilder};
use jobqueue_admin::{AccessLevel, Admin, JobReference};
use jobqueue_testing::faults::{Fault, Faulty};
use jobqueue_tests::jobs::{Log, Task, after, in_memory, outcomes, task, worker};

/// Makes every renewal fail.
fn refuse_renewals(faulty: &Faulty) {
    faulty.plan_always(Operation::Update, Fault::Refuse(StoreErrorKind::Unavailable));
}

/// Counts the handlers that run at once.
#[derive(Clone, Default)]
struct AtOnce {
    running: Arc<Mutex<u32>>,
    runs: Log,
}

/// A handler that runs.
struct Running(Arc<Mutex<u32>>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.lock().unwrap() -= 1;
    }
}

impl AtOnce {
    /// Runs for longer than any lease lasts, whether its token fires or not.
    async fn run(self) -> Result<(), JobError> {
        *self.running.lock().unwrap() += 1;
        self.runs.lock().unwrap().push(self.running.lock().unwrap().to_string());
        let _running = Running(self.running);
        after(3_600).await;
        Ok(())
    }

    /// Adds the handler to a worker, which gives it a grace of 60 s.
    fn worker(&self, storage: &Storage) -> WorkerBuilder {
        let counts = self.clone();
        worker(storage).cancel_grace(Duration::from_secs(60)).handle(move |_: Task| counts.clone().run())
    }

    fn assert_one_at_a_time(&self) {
        let runs = self.runs.lock().unwrap();
        assert!(runs.len() > 1, "the lease was lost");
        assert!(runs.iter().all(|at_once| at_once == "1"), "{runs:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_dropped_before_another_worker_has_its_message() {
    let (storage, counts) = (in_memory(), AtOnce::default());
    let faulty = Faulty::new(&storage);
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    refuse_renewals(&faulty);
    let start =
        |storage: &Storage| tokio::spawn(counts.worker(storage).build().unwrap().run_until(after(90)));
    let first = start(&faulty.storage());
    // The second one is nearer to the storage, and would be first.
    after(1).await;
    for worker in [first, start(&storage)] {
        let _ = worker.await.unwrap().unwrap();
    }
    counts.assert_one_at_a_time();
}

#[tokio::test(start_paused = true)]
async fn a_shutdowns_grace_ends_with_the_lease() {
    let (storage, counts) = (in_memory(), AtOnce::default());
    let faulty = Faulty::new(&storage);
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).await.unwrap();
    refuse_renewals(&faulty);
    let stopping = counts.worker(&faulty.storage()).shutdown_timeout(Duration::ZERO).build().unwrap();
    let stopping = tokio::spawn(stopping.run_until(after(5)));
    after(1).await;
    let _ = counts.worker(&storage).build().unwrap().run_until(after(90)).await.unwrap();
    let _ = stopping.await.unwrap().unwrap();
    counts.assert_one_at_a_time();
}

/// Whoever gets the message of the cancelled job next makes a dead letter of it, without a run.
#[tokio::test(start_paused = true)]
async fn a_cancellations_grace_ends_with_the_lease() {
    let (storage, counts) = (in_memory(), AtOnce::default());
    let faulty = Faulty::new(&storage);
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).id("a").await.unwrap();
    let running_at_its_end = Arc::new(Mutex::new(Vec::new()));
    let start = |storage: &Storage| {
        let (running, sink) = (Arc::clone(&counts.running), Arc::clone(&running_at_its_end));
        let listener = move |event: &Event| {
            if let Event::Finished { outcome: Outcome::DeadLettered(_), .. } = event {
                sink.lock().unwrap().push(*running.lock().unwrap());
            }
        };
        let built = counts.worker(storage).presence(Duration::from_secs(5)).on_event(listener).build();
        tokio::spawn(built.unwrap().run_until(after(120)))
    };
    let first = start(&faulty.storage());
    after(7).await;
    let admin = Admin::builder(storage.clone()).access(AccessLevel::Operate).build();
    assert_eq!(admin.cancel(&JobReference::new("tasks", "a")).await.unwrap().workers, 1);
    refuse_renewals(&faulty);
    for worker in [first, start(&storage)] {
        let _ = worker.await.unwrap().unwrap();
    }
    assert_eq!(*running_at_its_end.lock().unwrap(), [0]);
}

#[tokio::test(start_paused = true)]
async fn no_handler_begins_when_its_lease_is_over() {
    let faulty = Faulty::new(&in_memory());
    let queue = faulty.storage().queue::<Task>().await.unwrap();
    // Its payload is in a blob, which takes longer to come than the lease lasts.
    let _ = queue.send(&Task { name: "a".to_owned(), data: "d".repeat(70_000) }).await.unwrap();
    refuse_renewals(&faulty);
    faulty.plan(Operation::GetBlob, 1, Fault::DelayAfter(Duration::from_secs(29)));
    let runs = Log::default();
    let sink = Arc::clone(&runs);
    let (log, listener) = outcomes();
    let handler = move |job: Task| {
        sink.lock().unwrap().push(job.name);
        async { Ok::<(), JobError>(()) }
    };
    let built = worker(&faulty.storage()).on_event(listener).handle(handler).build().unwrap();
    let _ = built.run_until(after(60)).await.unwrap();
    assert_eq!(*log.lock().unwrap(), ["lease_lost", "completed"]);
    assert_eq!(*runs.lock().unwrap(), ["a"], "only the delivery that could end it has run");
}

/// A job that snoozes for longer than it lives is visible for a moment before its end. Neither that nor its
/// end says that a lease was not renewed.
#[tokio::test(start_paused = true)]
async fn job_whose_time_to_live_ends_has_lost_no_lease() {
    for lease in ["30", "5"] {
        let storage = in_memory();
        let queue = storage.queue::<Task>().await.unwrap();
        let lease = Metadata::new().with("defaulttimeout", lease);
        storage.queues().set_queue_metadata(queue.name(), &lease).await.unwrap();
        let _ = queue.send(&task("a")).ttl(Duration::from_secs(600)).await.unwrap();
        let losses = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&losses);
        let listen = move |event: &Event| {
            count.fetch_add(u32::from(matches!(event, Event::LeaseLost { .. })), Ordering::Relaxed);
        };
        let runs = Arc::new(AtomicU32::new(0));
        let counted = Arc::clone(&runs);
        let handler = move |_: Task| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Err::<(), _>(JobError::snooze(Duration::from_secs(3_600))) }
        };
        let built = worker(&storage).handle(handler).on_event(listen).build().unwrap();
        let health = built.health();
        let report = built.run_until(after(700)).await.unwrap();
        assert_eq!((report.released, report.expired, report.lease_lost), (1, 1, 0), "{lease:?}: {report:?}");
        assert_eq!(runs.load(Ordering::Relaxed), 1, "{lease:?}: it runs no sooner than it asked for");
        assert_eq!(losses.load(Ordering::Relaxed), 0, "{lease:?}");
        assert_eq!(health.report().since_lease_expired, None, "{lease:?}");
    }
}

// round 31, deliveries 4: the outcome had the hour for which the handler asked.
#[tokio::test(start_paused = true)]
async fn outcome_of_a_put_back_beyond_the_time_to_live_is_true() {
    let storage = in_memory();
    let queue = storage.queue::<Task>().await.unwrap();
    let _ = queue.send(&task("a")).ttl(Duration::from_secs(600)).await.unwrap();
    let waits = Arc::<Mutex<Vec<u64>>>::default();
    let sink = Arc::clone(&waits);
    let listen = move |event: &Event| {
        if let Event::Finished { outcome: Outcome::Released(wait), .. } = event {
            sink.lock().unwrap().push(wait.as_secs());
        }
    };
    let handler = async |_: Task| Err::<(), _>(JobError::snooze(Duration::from_secs(3_600)));
    let built = worker(&storage).handle(handler).on_event(listen).build().unwrap();
    let _ = built.run_until(after(60)).await.unwrap();
    let waits = waits.lock().unwrap();
    assert!(matches!(waits[..], [590..=600]), "{waits:?}");
}
